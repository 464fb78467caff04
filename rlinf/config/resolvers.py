"""Small functions that YAML files may call, such as `${multiply:${a},2}`."""

from __future__ import annotations

import operator
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


def register_resolvers() -> None:
    """Register the resolvers with OmegaConf; calling it again does nothing.

    `add`, `subtract`, `multiply`, `divide` (whole), `min` and `max` take two numbers, `not` takes
    a truth value.
    """
    from omegaconf import OmegaConf

    for name, function in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_new_resolver(name, _with_signature(function))


def _with_signature(function: Any) -> Any:
    # OmegaConf inspects signatures, and built-in functions do not always have one.
    def resolver(*values: Any) -> Any:
        return function(*values)

    return resolver
