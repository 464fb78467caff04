"""Small functions that YAML files may call, such as `${multiply:${a},2}`."""

from __future__ import annotations

import fnmatch
import operator
import os
from typing import Any

_RESOLVERS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.floordiv,
    "not": operator.not_,
    "min": min,
    "max": max,
}


ALLOW_VARIABLES = "RLINF_CONFIG_ENV"
"""Environment variable with further names, separated by commas, that YAML files may read."""

READABLE_VARIABLES = (
    "RLINF_*",
    "SLURM_*",
    "CUDA_VISIBLE_DEVICES",
    "EMBODIED_PATH",
    "HF_HOME",
    "HOME",
    "HOSTNAME",
    "PWD",
    "TMPDIR",
    "USER",
)
"""Environment variables that YAML files may read: those that hold no secrets."""


def register_resolvers() -> None:
    """Register the resolvers with OmegaConf; calling it again does nothing.

    `add`, `subtract`, `multiply`, `divide` (whole), `min` and `max` take two numbers, `not` takes
    a truth value. `oc.env` gives environment variables of an allow-list: a file of a stranger must
    not show, or write down, what else is there.
    """
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("oc.env", _environment_variable, replace=True)

    for name, function in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, _with_signature(function))


_UNSET = "_unset_"


def _environment_variable(name: str, default: str | None = _UNSET) -> str | None:
    value = os.environ.get(name)
    if value is None:
        if default == _UNSET:
            raise KeyError(f"Environment variable '{name}' not found")
        return default if default is None else str(default)
    asked = os.environ.get(ALLOW_VARIABLES, "").split(",")
    if not any(fnmatch.fnmatchcase(name, allowed) for allowed in (*READABLE_VARIABLES, *asked)):
        raise ValueError(
            f"the environment variable {name} is not among those that a config may read; export "
            f"{ALLOW_VARIABLES}={name} if it should"
        )
    return value


def _with_signature(function: Any) -> Any:
    # OmegaConf inspects signatures, and built-in functions do not always have one.
    def resolver(*values: Any) -> Any:
        return function(*values)

    return resolver
