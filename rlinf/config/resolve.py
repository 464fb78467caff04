"""Turns a Hydra config into plain data, resolving interpolations and naming those that fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf.config.errors import ABSENT, ConfigError, Problem
from rlinf.config.resolvers import register_resolvers
from rlinf.config.tracked import leaf_paths, untracked

IGNORED = ("defaults", "hydra")
"""Top-level keys that belong to Hydra."""

_REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_][\w.-]*)[^:{}]*\}")


@dataclass
class Resolved:
    """A config as plain data.

    Attributes:
        data: Nested maps and lists.
        problems: Values that are missing or cannot be resolved.
        unusable: Paths of those values; they are None in `data`.
        user_keys: Leaf paths that are set, less those that only serve interpolations.
    """

    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unusable: set[str] = field(default_factory=set)
    user_keys: set[str] = field(default_factory=set)


def resolve(cfg: Any) -> Resolved:
    """Resolve a config without changing it.

    Args:
        cfg: A `DictConfig` or a plain map.

    Returns:
        The plain data and what is wrong with it so far.

    Raises:
        ConfigError: `cfg` is not a map, or holds values that no YAML file can.
    """
    if not isinstance(cfg, (DictConfig, Mapping)):
        message = f"must be a map of sections, not {type(cfg).__name__}"
        raise ConfigError([Problem("", ABSENT, message)])
    register_resolvers()
    try:
        config = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
        with untracked():
            raw = OmegaConf.to_container(config, resolve=False)
            result = Resolved()
            result.data = _plain(config, "", result, ())
    except OmegaConfBaseException as error:
        raise ConfigError([Problem(error.full_key or "", ABSENT, _first_line(error))]) from error
    referenced = _references(raw)
    paths = leaf_paths(result.data)
    result.user_keys = {path for path in paths if not _covered(path, referenced)}
    return result


def join(path: str, key: Any) -> str:
    """Return the dotted path of `key` in `path`; list positions are written `[i]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def _plain(node: Any, path: str, result: Resolved, above: tuple[int, ...]) -> Any:
    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    if id(node) in above:
        raise RecursionError
    is_map = isinstance(node, DictConfig)
    keys = list(node.keys()) if is_map else list(range(len(node)))
    values = {}
    for key in keys:
        if not path and key in IGNORED:
            continue
        here = join(path, key)
        try:
            if OmegaConf.is_missing(node, key):
                message = "needs a value: it is marked ??? in the config"
                result.problems.append(Problem(here, ABSENT, message))
                raise _Unusable
            values[key] = _plain(node[key], here, result, (*above, id(node)))
        except _Unusable:
            values[key] = None
            result.unusable.add(here)
        except (OmegaConfBaseException, RecursionError) as error:
            values[key] = None
            result.unusable.add(here)
            result.problems.append(_failed(node, key, here, error))
    return values if is_map else [values[key] for key in keys]


class _Unusable(Exception):
    pass


def _failed(node: Any, key: Any, path: str, error: Exception) -> Problem:
    text = OmegaConf.to_container(node, resolve=False)[key]
    reason = _first_line(error)
    if isinstance(error, RecursionError) or "Recursive interpolation" in reason:
        return Problem(path, text, "refers to itself")
    hint = ""
    found = re.search(r"Interpolation key '(.+)' not found", reason)
    variable = re.search(r"Environment variable '(.+)' not found", reason)
    kept = re.search(r"(the environment variable \w+ is not among .+); (export .+)", reason)
    if found:
        reason = f"refers to '{found[1]}', which is not in the config"
    elif variable:
        reason = f"the environment variable {variable[1]} is not set"
        hint = f"export {variable[1]}, or give a default: ${{oc.env:{variable[1]},value}}"
    elif kept:
        reason, hint = kept[1], kept[2]
    else:
        reason = f"cannot be resolved: {reason}"
    return Problem(path, text, reason, hint)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _references(raw: Any, path: str = "") -> set[str]:
    """Return the paths that interpolations in `raw` refer to."""
    if isinstance(raw, dict):
        return set().union(*(_references(value, join(path, key)) for key, value in raw.items()))
    if isinstance(raw, list):
        return set().union(*(_references(value, join(path, i)) for i, value in enumerate(raw)))
    if not isinstance(raw, str):
        return set()
    found = set()
    for dots, target in _REFERENCE.findall(raw):
        parents = path.split(".")[: -len(dots)] if dots else []
        found.add(".".join([*parents, target.rstrip(".")]))
    return found


def _covered(path: str, referenced: set[str]) -> bool:
    return any(path == target or path.startswith(f"{target}.") for target in referenced)
