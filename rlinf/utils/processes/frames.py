"""Messages of known length over a pipe, as the child reads and writes them."""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct("<Q")

MAX_FRAME = 64 << 20
"""Most bytes of one message; a longer one is taken for garbage."""


def read_frame(fd: int) -> bytes | None:
    """Wait for the next message; None when the other side has closed."""
    header = _read(fd, HEADER.size)
    if header is None:
        return None
    return _read(fd, HEADER.unpack(header)[0])


def write_frame(fd: int, body: bytes) -> None:
    """Write a message, waiting for room."""
    rest = memoryview(HEADER.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
