"""Registry of the schemas that envs, models, rewards, datasets and algorithms bring along."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf.config.builtin import MODULES, WITHOUT_KEYS
from rlinf.config.errors import ConfigError, Problem
from rlinf.config.suggest import did_you_mean, how_to_register, listed

if TYPE_CHECKING:
    from pydantic import BaseModel

KINDS = (
    *("env", "model", "reward", "dataset", "advantage", "loss", "start_sampler"),
    *("agent_loop", "text_env", "tool", "tool_parser", "query_encoder"),
)
EXT_VARIABLE = "RLINF_EXT_MODULE"
EXT_KEY = "runner.ext_modules"

_schemas: dict[str, dict[str, type[BaseModel] | None]] = {
    kind: dict.fromkeys(WITHOUT_KEYS.get(kind, ())) for kind in KINDS
}
_modules: dict[str, dict[str, str]] = {
    kind: {name: module for module, names in MODULES.get(kind, {}).items() for name in names}
    for kind in KINDS
}
_replaced: set[tuple[str, str]] = set()
_extensions: set[str] = set()
_config_extensions: dict[str, None] = {}


class UnknownPlugin(ValueError):
    """A name that nobody registered; `hint` holds the near ones, and how to add one."""

    def __init__(self, kind: str, name: object) -> None:
        """Say which names are known and which of them are near."""
        names = known_names(kind)
        self.hint = "\n".join(filter(None, [did_you_mean(name, names), how_to_register(kind)]))
        super().__init__(f"no {kind} is registered under this name; known: {listed(names)}")


def register_schema(
    kind: str, name: str, model_cls: type[BaseModel] | None, *, replaces: bool = False
) -> None:
    """Register the keys that a plug-in adds to its section of the config.

    Args:
        kind: One of `KINDS`.
        name: What the user writes as `env_type`, `model_type`, `reward_type`, `data.type`,
            `adv_type`, `loss_type`, `start_sampler.type` or in `agentloop`; case does not matter.
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


def load_extension(modules: Sequence[str] = ()) -> None:
    """Import the modules of a config, and those named by RLINF_EXT_MODULE, once per process.

    What a module registers when it is imported is registered then; a function `register()`, if it
    has one, is called after that. Modules are also looked for in the current folder.

    Args:
        modules: `runner.ext_modules` of a config.

    Raises:
        ConfigError: A module cannot be imported, or its `register` fails; holds every such module.
    """
    problems = []
    of_variable = _split(os.environ.get(EXT_VARIABLE, ""))
    for source, names in ((EXT_VARIABLE, of_variable), (EXT_KEY, modules)):
        for name in names:
            try:
                if name not in _extensions:
                    _load(name, source)
            except ConfigError as error:
                problems += error.problems
                continue
            _extensions.add(name)
            if source == EXT_KEY:
                _config_extensions[name] = None
    if problems:
        raise ConfigError(problems)


def worker_extensions(variable: str) -> str:
    """Return the value of RLINF_EXT_MODULE for a worker of this process.

    Args:
        variable: The value that it would have; may be empty.

    Returns:
        Its modules, and those that configs named in this process; each once, in that order.
    """
    return ",".join(dict.fromkeys([*_split(variable), *_config_extensions]))


def _split(variable: str) -> list[str]:
    return [name.strip() for name in variable.split(",") if name.strip()]


def _load(name: str, source: str) -> None:
    # The command `rlinf` does not look there, unlike `python`; workers get this path, too.
    if os.getcwd() not in map(os.path.abspath, sys.path):
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        # An import runs the user's own code, which may raise anything.
        message = f"the module cannot be imported: {_said(error)}"
        raise ConfigError([_extension_problem(name, source, message)]) from error
    if hasattr(module, "__path__") and getattr(module, "__file__", None) is None:
        # Python takes any folder for a package, and this one registers nothing.
        message = f"this is the folder {list(module.__path__)[0]}, which has no __init__.py"
        raise ConfigError([_extension_problem(name, source, message)])
    register = getattr(module, "register", None)
    if register is None:
        return
    try:
        register()
    except Exception as error:
        message = f"register() of the module failed: {_said(error)}"
        raise ConfigError([_extension_problem(name, source, message)]) from error


def _said(error: Exception) -> str:
    """Return what an exception of the user's code says, and where it was raised."""
    said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    inside = "importlib" in last.filename or last.filename == __file__
    return said if inside else f"{said} ({last.filename}, line {last.lineno})"


def _extension_problem(module: str, source: str, message: str) -> Problem:
    if source == EXT_KEY:
        hint = f"run from the folder that holds {module}, or add that folder to PYTHONPATH"
        return Problem(EXT_KEY, module, message, hint)
    hint = f"set {EXT_VARIABLE} to a module in this folder or on PYTHONPATH, or unset it"
    return Problem(f"environment variable {EXT_VARIABLE}", module, message, hint)


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown plug-in kind '{kind}'; known: {', '.join(KINDS)}")
