"""Registry of the schemas that envs, models, rewards, datasets and algorithms bring along."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from rlinf.config.builtin import MODULES, WITHOUT_KEYS
from rlinf.config.errors import ConfigError, Problem
from rlinf.config.suggest import did_you_mean, listed

if TYPE_CHECKING:
    from pydantic import BaseModel

KINDS = ("env", "model", "reward", "dataset", "advantage", "loss")
EXT_VARIABLE = "RLINF_EXT_MODULE"

_schemas: dict[str, dict[str, type[BaseModel] | None]] = {
    kind: dict.fromkeys(WITHOUT_KEYS.get(kind, ())) for kind in KINDS
}
_modules: dict[str, dict[str, str]] = {
    kind: {name: module for module, names in MODULES.get(kind, {}).items() for name in names}
    for kind in KINDS
}
_replaced: set[tuple[str, str]] = set()
_extensions: set[str] = set()


class UnknownPlugin(ValueError):
    """A name that nobody registered; `hint` holds the near ones."""

    def __init__(self, kind: str, name: object) -> None:
        """Say which names are known and which of them are near."""
        names = known_names(kind)
        self.hint = did_you_mean(name, names)
        super().__init__(f"no {kind} is registered under this name; known: {listed(names)}")


def register_schema(
    kind: str, name: str, model_cls: type[BaseModel] | None, *, replaces: bool = False
) -> None:
    """Register the keys that a plug-in adds to its section of the config.

    Args:
        kind: One of `KINDS`.
        name: What the user writes as `env_type`, `model_type`, `reward_type`, `data.type`,
            `adv_type` or `loss_type`; case does not matter.
        model_cls: A pydantic model with the plug-in's own keys (the common ones are added), or
            None when there are no further keys.
        replaces: Take the place of whoever has the name, now or later.

    Raises:
        ValueError: Unknown kind, or the name is taken.
    """
    _check_kind(kind)
    key = name.lower()
    if replaces:
        _replaced.add((kind, key))
    elif (kind, key) in _replaced:
        return
    if not replaces and _schemas[kind].get(key, model_cls) is not model_cls:
        raise ValueError(
            f"{kind} '{name}' already has the schema {_schemas[kind][key]}; "
            "pass replaces=True to take its place"
        )
    _schemas[kind][key] = model_cls


def register_lazy(kind: str, name: str, module: str) -> None:
    """Say which module registers the schema of `name`; it is imported when the name is used.

    Args:
        kind: One of `KINDS`.
        name: As in `register_schema`.
        module: Dotted path of a module that calls `register_schema(kind, name, ...)`.

    Raises:
        ValueError: Unknown kind.
    """
    _check_kind(kind)
    _modules[kind][name.lower()] = module


def known_names(kind: str) -> list[str]:
    """Return every registered name of a kind, sorted, without importing anything new."""
    _check_kind(kind)
    return sorted({*_schemas[kind], *_modules[kind]})


def get_schema(kind: str, name: str) -> type[BaseModel] | None:
    """Return the schema that a plug-in registered, importing its module if need be.

    Args:
        kind: One of `KINDS`.
        name: As the user wrote it.

    Returns:
        The model, or None when the plug-in adds no keys.

    Raises:
        UnknownPlugin: Nobody registered this name.
        ValueError: The plug-in's module cannot be imported or does not register the name.
    """
    _check_kind(kind)
    key = str(name).lower()
    if key not in _schemas[kind]:
        if key not in _modules[kind]:
            raise UnknownPlugin(kind, name)
        module = _modules[kind][key]
        try:
            importlib.import_module(module)
        except Exception as error:
            raise ValueError(
                f"its keys are described in module {module}, which fails to import: {error}"
            ) from error
        if key not in _schemas[kind]:
            raise ValueError(f"module {module} does not register the {kind} '{name}'")
    return _schemas[kind][key]


def load_extension() -> None:
    """Import the modules named by RLINF_EXT_MODULE, separated by commas, once per process.

    What a module registers when it is imported is registered then; a function `register()`, if it
    has one, is called after that. Modules are also looked for in the current folder.

    Raises:
        ConfigError: A module cannot be imported, or its `register` fails.
    """
    names = [name.strip() for name in os.environ.get(EXT_VARIABLE, "").split(",")]
    for name in filter(None, names):
        if name not in _extensions:
            _load(name)
            _extensions.add(name)


def _load(name: str) -> None:
    # The command `rlinf` does not look there, unlike `python`; workers get this path, too.
    if os.getcwd() not in map(os.path.abspath, sys.path):
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        message = f"the module cannot be imported: {error}"
        raise ConfigError([_extension_problem(name, message)]) from error
    register = getattr(module, "register", None)
    if register is None:
        return
    try:
        register()
    except Exception as error:
        message = f"register() of the module failed: {type(error).__name__}: {error}"
        raise ConfigError([_extension_problem(name, message)]) from error


def _extension_problem(module: str, message: str) -> Problem:
    hint = f"set {EXT_VARIABLE} to a module in this folder or on PYTHONPATH, or unset it"
    return Problem(f"environment variable {EXT_VARIABLE}", module, message, hint)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown plug-in kind '{kind}'; known: {', '.join(KINDS)}")
