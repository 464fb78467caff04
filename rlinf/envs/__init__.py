"""Environments: one vector-env base class, thin adapters, lazy imports.

`get_env_cls` returns the class behind an `env_type`; it imports the simulator only then.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "rlinf.envs.action_utils": ("ActionConvention", "ActionSpec", "prepare_actions"),
    "rlinf.envs.base": ("VectorEnv",),
    "rlinf.envs.device": ("Device", "DeviceExpert", "DeviceReading", "device_expert"),
    "rlinf.envs.errors": (
        "EnvError",
        "EnvSlotError",
        "MissingSimulator",
        "NotFiniteError",
        "StateNotSupported",
    ),
    "rlinf.envs.experts": ("Expert", "make_expert", "register_expert"),
    "rlinf.envs.registry": ("SupportedEnvType", "get_env_cls", "register_env"),
    "rlinf.envs.rendering": ("can_render",),
    "rlinf.envs.slots": ("SlotVectorEnv",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rlinf.envs' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
