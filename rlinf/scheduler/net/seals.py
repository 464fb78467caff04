"""Proof that a frame is what the peer of this connection wrote, in this place of the stream.

Each direction of a connection has a key of its own, which follows from the run's secret and the
nonces of the handshake. The head of a frame is proved by itself, so that no length is believed that
nobody has vouched for; a second proof covers all that will be unpickled. The bytes of tensors are
not covered. A frame that comes again, or later, has the wrong number.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

_MAC = 16
_SEAL = struct.Struct(f"<I{_MAC}s")
SIZE = _SEAL.size + _MAC


class SealKeys(NamedTuple):
    """Keys of the two directions of a connection, as this side sees them."""

    send: bytes
    receive: bytes


class Seal(NamedTuple):
    """What the head of a frame says of its body.

    Attributes:
        covered: how many of its buffers, from the first on, are proved.
        mac: proof of these, of their sizes and of the meta part.
    """

    covered: int
    mac: bytes


def make_seal(key: bytes, head: bytes, covered: int, parts: Iterable[Any]) -> bytes:
    """Return what follows the head of a frame.

    Args:
        key: of the direction.
        head: number and lengths.
        covered: how many buffers are among the parts.
        parts: sizes and meta part, and the covered buffers.
    """
    body = _SEAL.pack(covered, _mac(key, b"body", [head, *parts]))
    return body + _mac(key, b"head", [head, body])


def read_seal(key: bytes, head: bytes, seal: bytes) -> Seal:
    """Check the head of a frame.

    Raises:
        ConnectionError: the peer did not write it.
    """
    body, proof = seal[: _SEAL.size], seal[_SEAL.size :]
    if not hmac.compare_digest(proof, _mac(key, b"head", [head, body])):
        raise ConnectionError("a message came whose head is not what the peer wrote")
    return Seal(*_SEAL.unpack(body))


def check_body(key: bytes, head: bytes, seal: Seal, parts: Iterable[Any]) -> None:
    """Check what is covered of a body.

    Raises:
        ConnectionError: the peer did not write it.
    """
    if not hmac.compare_digest(seal.mac, _mac(key, b"body", [head, *parts])):
        raise ConnectionError("a message came that is not what the peer wrote")


def _mac(key: bytes, purpose: bytes, parts: Iterable[Any]) -> bytes:
    digest = hashlib.blake2s(key=key, person=purpose, digest_size=_MAC)
    for part in parts:
        digest.update(part)
    return digest.digest()
