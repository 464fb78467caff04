"""A config that remembers which of its keys were read, so that keys nobody reads can be named."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import DictConfig, OmegaConf

_reads: set[str] = set()
_counting: ContextVar[bool] = ContextVar("rlinf_config_counting", default=True)

_INTERPOLATION = re.compile(r"(\\*)\$\{")
_PATH = "_tracked_path"
_USER_KEYS = "_tracked_user_keys"
_UNKNOWN = object()
_PLAIN = (int, float, bool, type(None))


class TrackedConfig(DictConfig):
    """A `DictConfig` whose reads are recorded in this process.

    Use `track` to make one. Nested maps are tracked too; a list counts as read as a whole. Printing
    the config is no read, but `OmegaConf.to_container` reads everything in it: to save a config
    without counting, use `to_plain` or `untracked`.
    """

    def _get_node(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        # Every way of reading a value in OmegaConf ends here.
        node = super()._get_node(key, *args, **kwargs)
        if node is not None and _counting.get():
            path = self.__dict__.get(_PATH)
            if path is not None:
                _reads.add(f"{path}.{key}" if path else str(key))
        return node

    def __getattr__(self, key: str) -> Any:
        """Read a value; without OmegaConf's machinery, which takes ten times as long."""
        content = self.__dict__.get("_content")
        node = content.get(key) if type(content) is dict else None
        value = _plain(node) if node is not None else _UNKNOWN
        if value is _UNKNOWN:
            return super().__getattr__(key)
        if _counting.get():
            path = self.__dict__.get(_PATH)
            if path is not None:
                _reads.add(f"{path}.{key}" if path else key)
        return value

    def __deepcopy__(self, memo: dict) -> TrackedConfig:
        """Copy, and go on tracking in the copy."""
        # DictConfig hard-codes its own class for the copy.
        result = super().__deepcopy__(memo)
        _become_tracked(result)
        for name in (_PATH, _USER_KEYS):
            if name in self.__dict__:
                result.__dict__[name] = self.__dict__[name]
        return result


def _plain(node: Any) -> Any:
    """Return the value of a node if it says all about it.

    No interpolation, nothing missing or escaped.
    """
    value = node.__dict__.get("_val", _UNKNOWN)
    if value is _UNKNOWN:
        return (
            node
            if type(node) is TrackedConfig and type(node.__dict__["_content"]) is dict
            else _UNKNOWN
        )
    if type(value) is str:
        return _UNKNOWN if "$" in value or value == "???" else value
    return value if type(value) in _PLAIN else _UNKNOWN


_OF_COLLECT = {"offline": ("env.train.",), "sft": ("env.train.",), "reward_model": ("env.",)}
"""By task type, sections of envs that only `rlinf collect` reads, as it does `collect` itself."""


def track(content: Mapping[str, Any], keys: Iterable[str]) -> TrackedConfig:
    """Make a read-only tracked config.

    Args:
        content: Plain data without interpolations.
        keys: Leaf paths that the user set, as from `leaf_paths`.

    Returns:
        The config; an absent key raises instead of reading as None.
    """
    config = OmegaConf.create(_escape(dict(content)))
    _adopt(config, "")
    config.__dict__[_USER_KEYS] = frozenset(keys)
    OmegaConf.set_struct(config, True)
    OmegaConf.set_readonly(config, True)
    return config


def reads() -> set[str]:
    """Return the key paths read in this process so far; unions of such sets are valid too."""
    return set(_reads)


def reset_reads() -> None:
    """Forget what was read in this process."""
    _reads.clear()


@contextmanager
def untracked() -> Iterator[None]:
    """Read inside this block do not count; for saving, printing and checking configs."""
    token = _counting.set(False)
    try:
        yield
    finally:
        _counting.reset(token)


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Return plain, resolved data without counting it as read."""
    with untracked():
        return OmegaConf.to_container(config, resolve=True)


def leaf_paths(content: Any, prefix: str = "") -> list[str]:
    """Return the dotted paths of all values in nested maps; a list is one value.

    Args:
        content: Plain data.
        prefix: Path of `content` itself.

    Returns:
        Paths in the order of the data; an empty map is a value.
    """
    if not isinstance(content, Mapping) or (prefix and not content):
        return [prefix]
    paths = []
    for key, value in content.items():
        paths += leaf_paths(value, f"{prefix}.{key}" if prefix else str(key))
    return paths


def unread_keys(config: DictConfig, reads: Iterable[str]) -> list[str]:
    """Return the keys that the user set and that nobody read.

    Args:
        config: What `validate_cfg` returned, or a part or copy of it.
        reads: Paths that were read: the union of `reads()` over all processes of the run.

    Returns:
        Leaf paths, sorted. Empty for a config that is not tracked.
    """
    return sorted(user_keys(config) - set(reads))


def user_keys(config: Any) -> frozenset[str]:
    """Return the leaf paths that the user set; empty for a config that is not tracked."""
    root = config._get_root() if isinstance(config, DictConfig) else None
    return root.__dict__.get(_USER_KEYS, frozenset()) if root is not None else frozenset()


def format_unread(keys: Iterable[str]) -> str:
    """Return the report of unread keys that a user sees at the end of a run.

    Args:
        keys: As returned by `unread_keys`.

    Returns:
        The text, or an empty string when there is nothing to report.
    """
    keys = list(keys)
    if not keys:
        return ""
    head = "1 key of the config was" if len(keys) == 1 else f"{len(keys)} keys of the config were"
    return "\n".join(
        [
            f"{head} never read in this run and had no effect:",
            *(f"  {key}" for key in keys),
            "(runner.report_unread_keys: false turns this report off)",
        ]
    )


def unread_report(config: Any, reads: Iterable[str]) -> str:
    """Return the report for a run that has ended; empty if there is nothing to say.

    Args:
        config: What `validate_cfg` returned, or a part of it; anything else has no report.
        reads: Paths that were read in any process of the run.
    """
    if not user_keys(config):
        return ""
    with untracked():
        runner = config._get_root().get("runner") or {}
        # An evaluation takes the config of a training, most of which it has no use for.
        wanted = runner.get("report_unread_keys", True) and not runner.get("only_eval", False)
        elsewhere = ("collect.", *_OF_COLLECT.get(runner.get("task_type"), ()))
    unread = [key for key in unread_keys(config, reads) if not key.startswith(elsewhere)]
    return format_unread(unread) if wanted else ""


def _become_tracked(node: DictConfig) -> None:
    # Plain assignment would make a config key of it.
    object.__setattr__(node, "__class__", TrackedConfig)


def _adopt(node: DictConfig, path: str) -> None:
    _become_tracked(node)
    node.__dict__[_PATH] = path
    for key, child in (node.__dict__["_content"] or {}).items():
        if isinstance(child, DictConfig):
            _adopt(child, f"{path}.{key}" if path else str(key))


def _escape(value: Any) -> Any:
    # Data is resolved already: a "${" left in it is text.
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda match: match[1] * 2 + "\\${", value)
    if isinstance(value, Mapping):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape(item) for item in value]
    return copy.copy(value)
