"""Changes sizes of a network by plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from rlinf.config.suggest import did_you_mean, listed

Sizes = TypeVar("Sizes")


def changed(sizes: Sizes, given: Mapping[str, Any], where: str) -> Sizes:
    """Return sizes with some of them changed, also inside of others.

    Args:
        sizes: A dataclass; entries may be dataclasses and mappings themselves.
        given: New values by name.
        where: Key of the config, for errors.

    Raises:
        ValueError: There is no such size.
    """
    own = {entry.name: getattr(sizes, entry.name) for entry in fields(sizes)}
    new = {}
    for name, value in given.items():
        if name not in own:
            raise ValueError(
                f"{where} has no size '{name}'; there are {listed(list(own))}. "
                f"{did_you_mean(name, own)}".rstrip()
            )
        old = own[name]
        if is_dataclass(old):
            value = changed(old, value, f"{where}.{name}")
        elif isinstance(old, Mapping):
            value = {**old, **value}
        new[name] = value
    return replace(sizes, **new)
