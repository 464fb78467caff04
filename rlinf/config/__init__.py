"""Typed configuration: composing, checking and tracking what a run reads.

Names are imported when they are first used, so that workers pay only for what they need.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "rlinf.config.arithmetic": ("batch_arithmetic",),
    "rlinf.config.checks": ("CheckContext", "cross_check"),
    "rlinf.config.errors": ("ConfigError", "Problem"),
    "rlinf.config.load": ("build_config", "config_folders", "config_names"),
    "rlinf.config.plugins": ("load_extension", "register_lazy", "register_schema"),
    "rlinf.config.reference": ("config_reference_markdown", "json_schema"),
    "rlinf.config.requirements": (
        "ExtrasMissing",
        "Need",
        "missing_extras",
        "register_need",
        "require_extras",
    ),
    "rlinf.config.schema.base": ("Float", "Int", "Section"),
    "rlinf.config.schema.cluster": ("ClusterConfig",),
    "rlinf.config.schema.env": ("EnvConfig",),
    "rlinf.config.schema.model": ("ModelConfig",),
    "rlinf.config.supported_env": ("SupportedEnvType",),
    "rlinf.config.supported_model": ("SupportedModel", "get_supported_model"),
    "rlinf.config.tracked": (
        "TrackedConfig",
        "format_unread",
        "reads",
        "reset_reads",
        "to_plain",
        "unread_keys",
        "untracked",
    ),
    "rlinf.config.validate": ("validate_cfg",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rlinf.config' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
