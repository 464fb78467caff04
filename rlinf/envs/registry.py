"""Which environments there are: names, classes and config schemas, found when first used."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlinf.config.plugins import load_extension, register_schema
from rlinf.config.signatures import Call, check_accepts, check_call, check_method
from rlinf.config.supported_env import SupportedEnvType

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rlinf.envs.base import VectorEnv


_targets: dict[str, Any] = {
    "metaworld": "rlinf.envs.metaworld.env:MetaWorldEnv",
    "gymnasium": "rlinf.envs.gymnasium.env:GymnasiumEnv",
    "envpool": "rlinf.envs.envpool.env:EnvPoolEnv",
    "maniskill": "rlinf.envs.maniskill.env:ManiSkillEnv",
    "libero": "rlinf.envs.libero.env:LiberoEnv",
    "navigation": "rlinf.envs.navigation.env:NavigationEnv",
}
_VECTOR = Call(("cfg",), ("num_envs", "seed_offset", "total_num_processes", "worker_info"))
"""How vector envs are made."""

_GYMNASIUM = {"reset": Call((), ("seed",)), "step": Call(("action",))}
"""How methods of Gymnasium envs are called."""

_own_keys: dict[str, tuple[str, ...]] = {}


def register_env(
    name: str,
    target: Any = None,
    schema: type[BaseModel] | None = None,
    *,
    replaces: bool = False,
) -> Callable[[Any], Any] | None:
    """Register an environment, as a call or as a decorator.

    A Gymnasium env, or a function that makes one, is all it takes::

        @register_env("maze")
        class Maze(gymnasium.Env): ...

    From then on `env_type: maze` works. Its arguments are `init_params` of the config and the keys
    of `schema`.

    Args:
        name: What the user writes as `env_type`; case does not matter.
        target: A `VectorEnv` class, a `gymnasium.Env` class, a function that returns such an env,
            or the path of one of them as text, `package.module:name`. None to use as a decorator.
        schema: Pydantic model of the keys that it adds to `env.train` and `env.eval`.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator if `target` is None.

    Raises:
        ValueError: The name is taken, or the env cannot be made or stepped as envs are.
    """
    if target is None:

        def decorate(target: Any) -> Any:
            register_env(name, target, schema, replaces=replaces)
            return target

        return decorate
    from rlinf.envs.config import VectorEnvKeys, with_base_keys
    from rlinf.envs.gymnasium.config import GymnasiumEnvKeys

    key = name.lower()
    _check_signatures(f"env '{name}'", target, tuple(schema.model_fields) if schema else ())
    base = VectorEnvKeys if isinstance(target, str) or _is_vector(target) else GymnasiumEnvKeys
    if not replaces and not _same(_targets.get(key, target), target):
        raise ValueError(
            f"env type '{name}' is already {_targets[key]}; pass replaces=True to take its place"
        )
    if replaces or key not in _targets:
        register_schema("env", key, with_base_keys(schema, base), replaces=replaces)
    SupportedEnvType.register(key)
    _targets[key] = target
    _own_keys[key] = tuple(schema.model_fields) if schema else ()
    return None


def _check_signatures(what: str, target: Any, keys: tuple[str, ...]) -> None:
    if isinstance(target, str):
        return
    if _is_vector(target):
        check_call(what, target, _VECTOR)
        return
    if not callable(target):
        raise ValueError(f"{what} must be an env class or a function, but is {target!r}")
    # Further arguments may come with `init_params`.
    check_accepts(what, target, keys)
    for method, call in _GYMNASIUM.items():
        if hasattr(target, method):
            check_method(what, target, method, call)


def get_env_cls(env_type: str | SupportedEnvType, env_cfg: Any = None) -> type[VectorEnv]:
    """Return the vector env class of an env type, importing its simulator's adapter.

    Args:
        env_type: As in the config, or a member.
        env_cfg: `env.train` or `env.eval`; for adapters that choose their class by it. The built-in
            ones do not.

    Returns:
        A class to be called with `(cfg, num_envs, seed_offset, total_num_processes, worker_info)`.

    Raises:
        ValueError: The type is unknown; the message names the near ones.
    """
    load_extension()
    key = SupportedEnvType(env_type).value
    target = _targets[key]
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
    if _is_vector(target):
        return target
    from rlinf.envs.gymnasium.env import env_cls_for

    return env_cls_for(key, target, _own_keys.get(key, ()))


def _is_vector(target: Any) -> bool:
    # Whoever derived from it has imported it; a config check need not.
    base = sys.modules.get("rlinf.envs.base")
    return base is not None and inspect.isclass(target) and issubclass(target, base.VectorEnv)


def _same(one: Any, other: Any) -> bool:
    # A module that is imported again defines its classes again.
    return one == other or _path(one) == _path(other)


def _path(target: Any) -> str:
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', target)}"
