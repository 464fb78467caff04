"""Mutual proof of the run's secret, before a peer's first byte is interpreted.

The listening side speaks first: it says whether the run is encrypted, so that both notice if they
do not agree, and sends its nonce. The other side answers with a short proof of fixed size, which
costs next to nothing to check: only whoever has it right gets a thread, and time. In an encrypted
run all that follows is under TLS.

The secret never travels. Both sides show that they know it by an HMAC over the two nonces of this
connection, so a recorded handshake is of no use for another one. Everything read before the proof
has a fixed size or a small bound, and nothing of it is deserialised until the MAC has been checked.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from typing import Any, NamedTuple, Protocol

from rlinf.scheduler.net.seals import SealKeys

MAGIC = b"RLINF4"
_PLAIN, _ENCRYPTED = b"P", b"T"
NONCE = 32
MAC = 32
FIRST_PROOF = MAC
"""Bytes of the answer to a hello."""
MAX_IDENTITY = 4096
HUNG_UP = "the peer closed the connection during the handshake"
_LEN = struct.Struct("<H")


class AuthError(ConnectionError):
    """The peer did not prove that it belongs to this run."""


class Stream(Protocol):
    """A blocking socket, or one under TLS."""

    def recv(self, size: int, /) -> bytes:
        """Receive some bytes; none at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Send bytes."""


def new_secret() -> bytes:
    """Make the secret of a run."""
    return os.urandom(32)


def _mac(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, role + b"".join(parts), hashlib.sha256).digest()


class Hello(NamedTuple):
    """What the listening side says first.

    Attributes:
        encrypted: whether TLS follows.
        nonce: what the other side has to answer.
    """

    encrypted: bool
    nonce: bytes

    @classmethod
    def new(cls, encrypted: bool) -> Hello:
        """Make one for a new connection."""
        return cls(encrypted, os.urandom(NONCE))

    def to_bytes(self) -> bytes:
        """Return what is sent."""
        return MAGIC + (_ENCRYPTED if self.encrypted else _PLAIN) + self.nonce


def read_hello(sock: Stream, encrypted: bool, where: str) -> Hello:
    """Read what the listening side says first.

    Args:
        sock: a blocking socket.
        encrypted: what it should be.
        where: the other side, in words.

    Raises:
        AuthError: it is not of this kind.
        ConnectionError: one of the sides encrypts and the other does not.
    """
    said = read_exactly(sock, len(MAGIC) + 1 + NONCE)
    mode = said[len(MAGIC) : len(MAGIC) + 1]
    if said[: len(MAGIC)] != MAGIC or mode not in (_PLAIN, _ENCRYPTED):
        raise AuthError(f"what listens at {where} does not speak this protocol")
    hello = Hello(mode == _ENCRYPTED, said[len(MAGIC) + 1 :])
    if hello.encrypted and not encrypted:
        raise ConnectionError(
            f"the run that listens at {where} is encrypted, and this process is not: set "
            "cluster.encryption: true on both"
        )
    if encrypted and not hello.encrypted:
        raise ConnectionError(
            f"this run is encrypted, and what listens at {where} is not: set cluster.encryption: "
            "true on both"
        )
    return hello


def read_exactly(sock: Stream, size: int) -> bytes:
    """Read `size` bytes from a blocking socket."""
    chunks = bytearray()
    while len(chunks) < size:
        chunk = sock.recv(size - len(chunks))
        if not chunk:
            raise AuthError(HUNG_UP)
        chunks += chunk
    return bytes(chunks)


def first_proof(secret: bytes, nonce: bytes) -> bytes:
    """Return the answer to a hello; it comes before everything else."""
    return _mac(secret, b"first", nonce)


def is_first_proof(said: bytes, secret: bytes, nonce: bytes) -> bool:
    """Return whether a peer has given the right answer to a hello."""
    return hmac.compare_digest(said, first_proof(secret, nonce))


def greet(sock: Stream, secret: bytes, identity: dict[str, Any], hello: Hello) -> SealKeys:
    """Client side of the handshake on a blocking socket; return the keys of the connection."""
    theirs = hello.nonce
    mine = os.urandom(NONCE)
    who = json.dumps(identity).encode()
    if len(who) > MAX_IDENTITY:
        raise ValueError(f"identity of {len(who)} bytes is over {MAX_IDENTITY}")
    proof = _mac(secret, b"client", theirs, mine, who)
    sock.sendall(mine + proof + _LEN.pack(len(who)) + who)
    if not hmac.compare_digest(read_exactly(sock, MAC), _mac(secret, b"server", mine, theirs)):
        raise AuthError("the listening side does not know the secret of this run")
    to_server, to_client = _keys(secret, theirs, mine)
    return SealKeys(send=to_server, receive=to_client)


def admit(sock: Stream, secret: bytes, nonce: bytes) -> tuple[dict[str, Any], SealKeys]:
    """Server side of the handshake on a blocking socket.

    Args:
        sock: the socket.
        secret: secret of the run.
        nonce: what was sent in the hello.

    Returns:
        The client's identity, and the keys of the connection.
    """
    head = read_exactly(sock, NONCE + MAC + _LEN.size)
    theirs, proof = head[:NONCE], head[NONCE : NONCE + MAC]
    (size,) = _LEN.unpack(head[NONCE + MAC :])
    if size > MAX_IDENTITY:
        raise AuthError(f"the peer announced an identity of {size} bytes")
    who = read_exactly(sock, size)
    if not hmac.compare_digest(proof, _mac(secret, b"client", nonce, theirs, who)):
        raise AuthError("the peer does not know the secret of this run")
    sock.sendall(_mac(secret, b"server", theirs, nonce))
    to_server, to_client = _keys(secret, nonce, theirs)
    return json.loads(who), SealKeys(send=to_client, receive=to_server)


def _keys(secret: bytes, of_server: bytes, of_client: bytes) -> tuple[bytes, bytes]:
    """Return the keys of what goes to the server and to the client, from the nonces of both."""
    to_server = _mac(secret, b"key to server", of_server, of_client)
    return to_server, _mac(secret, b"key to client", of_server, of_client)
