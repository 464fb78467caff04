"""Values that cross the border of a sandbox: plain types, of bounded size and depth."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 64
"""Most containers inside each other."""

_LEVELS = 3
"""Brackets that one container is written with, at the most."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


class BadValue(ValueError):
    """A value that does not cross the border."""


def encode(value: Any, refer: Callable[[Any], int] | None = None) -> bytes:
    """Write a value.

    Args:
        value: None, truth values, numbers, texts, bytes, and lists, tuples, sets and dicts of them;
            what has `tolist`, as arrays do, is written as that. An instance of a subclass becomes
            one of the plain type.
        refer: gives a number to an object of another type; without it such an object is refused.

    Raises:
        BadValue: it has another type, or is too deep.
    """
    return json.dumps(_pack(value, refer, MAX_DEPTH)).encode()


def decode(data: bytes, dereference: Callable[[int], Any] | None = None) -> Any:
    """Read a value that was written by a stranger.

    Args:
        data: what `encode` writes, or anything else.
        dereference: returns what stands for an object that `refer` has given a number; without it
            such an object is refused.

    Raises:
        BadValue: it is not a value, or too deep.
    """
    try:
        text = data.decode()
        _check_depth(text)
        return _unpack(json.loads(text), dereference, MAX_DEPTH)
    except BadValue:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise BadValue(f"is not a value: {type(error).__name__}: {error}") from error


def _check_depth(text: str) -> None:
    """Refuse what a parser would follow too deep."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > _LEVELS * (MAX_DEPTH + 1):
            raise BadValue(f"is nested more than {MAX_DEPTH} deep")


def _pack(value: Any, refer: Callable[[Any], int] | None, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    for kind, plain in ((int, int.__pos__), (float, float.__pos__), (str, str.__str__)):
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if not depth:
        raise BadValue(f"is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[_pack(part, refer, depth - 1) for part in pair] for pair in pairs]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            parts = [_pack(part, refer, depth - 1) for part in kind.__iter__(value)]
            return parts if kind is list else {kind.__name__: parts}
    if callable(getattr(type(value), "tolist", None)):
        return _pack(value.tolist(), refer, depth - 1)
    if refer is not None:
        return {"object": refer(value)}
    raise BadValue(
        f"has type {type(value).__name__}; allowed are None, bool, int, float, complex, str, bytes,"
        " and list, tuple, set and dict of them"
    )


def _unpack(node: Any, dereference: Callable[[int], Any] | None, depth: int) -> Any:
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if not depth:
        raise BadValue(f"is nested more than {MAX_DEPTH} deep")
    if isinstance(node, list):
        return [_unpack(part, dereference, depth - 1) for part in node]
    if not isinstance(node, dict) or len(node) != 1:
        raise BadValue("is not a value: a mapping without a type")
    ((kind, content),) = node.items()
    if kind == "bytes" and isinstance(content, str):
        return bytes.fromhex(content)
    if kind == "object" and type(content) is int and content >= 0 and dereference is not None:
        return dereference(content)
    if not isinstance(content, list):
        raise BadValue(f"is not a value: {kind[:20]!r}")
    if kind == "complex":
        return complex(*map(float, content))
    if kind == "dict":
        pairs = (_unpack(pair, dereference, depth) for pair in content)
        return {key: value for key, value in pairs}
    types: dict[str, Callable[..., Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
    if kind not in types:
        raise BadValue(f"is not a value: {kind[:20]!r}")
    return types[kind](_unpack(part, dereference, depth - 1) for part in content)
