"""Mutual proof of the run's secret, before a peer's first byte is interpreted.

The secret never travels. Both sides show that they know it by an HMAC over the two nonces of this
connection, so a recorded handshake is of no use for another one. Everything read before the proof
has a fixed size or a small bound, and nothing of it is deserialised until the MAC has been checked.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

from rlinf.scheduler.net.seals import SealKeys

MAGIC = b"RLINF2"
NONCE = 32
MAC = 32
MAX_IDENTITY = 4096
_LEN = struct.Struct("<H")


class AuthError(ConnectionError):
    """The peer did not prove that it belongs to this run."""


def new_secret() -> bytes:
    """Make the secret of a run."""
    return os.urandom(32)


def _mac(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, role + b"".join(parts), hashlib.sha256).digest()


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes from a blocking socket."""
    chunks = bytearray()
    while len(chunks) < size:
        chunk = sock.recv(size - len(chunks))
        if not chunk:
            raise AuthError("the peer closed the connection during the handshake")
        chunks += chunk
    return bytes(chunks)


def greet(sock: socket.socket, secret: bytes, identity: dict[str, Any]) -> SealKeys:
    """Client side of the handshake on a blocking socket; return the keys of the connection."""
    hello = read_exactly(sock, len(MAGIC) + NONCE)
    if hello[: len(MAGIC)] != MAGIC:
        raise AuthError("the peer does not speak this protocol")
    theirs = hello[len(MAGIC) :]
    mine = os.urandom(NONCE)
    who = json.dumps(identity).encode()
    if len(who) > MAX_IDENTITY:
        raise ValueError(f"identity of {len(who)} bytes is over {MAX_IDENTITY}")
    sock.sendall(mine + _mac(secret, b"client", theirs, mine, who) + _LEN.pack(len(who)) + who)
    if not hmac.compare_digest(read_exactly(sock, MAC), _mac(secret, b"server", mine, theirs)):
        raise AuthError("the listening side does not know the secret of this run")
    to_server, to_client = _keys(secret, theirs, mine)
    return SealKeys(send=to_server, receive=to_client)


def admit(sock: socket.socket, secret: bytes) -> tuple[dict[str, Any], SealKeys]:
    """Server side of the handshake on a blocking socket.

    Returns:
        The client's identity, and the keys of the connection.
    """
    mine = os.urandom(NONCE)
    sock.sendall(MAGIC + mine)
    head = read_exactly(sock, NONCE + MAC + _LEN.size)
    theirs, proof = head[:NONCE], head[NONCE : NONCE + MAC]
    (size,) = _LEN.unpack(head[NONCE + MAC :])
    if size > MAX_IDENTITY:
        raise AuthError(f"the peer announced an identity of {size} bytes")
    who = read_exactly(sock, size)
    if not hmac.compare_digest(proof, _mac(secret, b"client", mine, theirs, who)):
        raise AuthError("the peer does not know the secret of this run")
    sock.sendall(_mac(secret, b"server", theirs, mine))
    to_server, to_client = _keys(secret, mine, theirs)
    return json.loads(who), SealKeys(send=to_client, receive=to_server)


def _keys(secret: bytes, of_server: bytes, of_client: bytes) -> tuple[bytes, bytes]:
    """Return the keys of what goes to the server and to the client, from the nonces of both."""
    to_server = _mac(secret, b"key to server", of_server, of_client)
    return to_server, _mac(secret, b"key to client", of_server, of_client)
