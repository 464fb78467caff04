"""Keys of channels: which objects can be one, and a form of them that is equal in every process.

Two keys that are equal and have equal hashes are one key, as in a dict: `1`, `True`, `1.0` and
`np.int64(1)` are. Python salts the hashes of strings in each process anew, and `repr` differs
between equal keys, so neither can say which keeper has a key; the stable form can.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Hashable
from decimal import Decimal
from fractions import Fraction
from typing import Any

_ALLOWED = (
    "A key is None, a string, bytes, a number, a NumPy scalar of these kinds, an enum member, or "
    "a tuple or frozenset of such. For anything else use a tuple of its fields, or a string."
)

# By how a type computes its hash, so that subclasses which keep the rules of their base are
# treated like it and others are not. The hash of a number is the same in every process.
_NUMBERS = frozenset(kind.__hash__ for kind in (int, float, complex, Decimal, Fraction))


def stable_form(channel: str, key: Hashable) -> bytes:
    """Return bytes that are equal, in every process, for equal keys.

    Args:
        channel: name of the channel, for the error message.
        key: the key.

    Raises:
        ValueError: the key is not hashable, equals not even itself, or is of a type whose hash
            means nothing in another process.
    """
    try:
        hash(key)
        return _stable(key)
    except (TypeError, ValueError) as error:
        text = f"channel {channel!r}: {key!r} cannot be a key: {error}. {_ALLOWED}"
        raise ValueError(text) from None


def _stable(key: Any) -> bytes:
    if key is None:
        return b"0;"
    rule = type(key).__hash__
    if rule in _NUMBERS:
        if key != key:
            raise ValueError("it does not equal itself")
        return b"n%d;" % hash(key)
    if rule is str.__hash__:
        return _text(b"s", str.encode(key, "utf-8", "surrogatepass"))
    if rule is bytes.__hash__:
        return _text(b"b", bytes(key))
    if rule is tuple.__hash__:
        return b"(%b)" % b"".join(map(_stable, key))
    if rule is frozenset.__hash__:
        return b"{%b}" % b"".join(sorted(map(_stable, key)))
    if rule is enum.Enum.__hash__:
        kind = type(key)
        return _text(b"e", f"{kind.__module__} {kind.__qualname__} {key.name}".encode())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(key, numpy.generic):
        plain = key.item()
        if not isinstance(plain, numpy.generic) and (hash(plain) == hash(key) or plain != plain):
            return _stable(plain)
    raise ValueError(f"the hash of a {type(key).__name__} means nothing in another process")


def _text(kind: bytes, text: bytes) -> bytes:
    return b"%b%d:%b" % (kind, len(text), text)
