"""Reads the spans that processes wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlinf.scheduler.trace.recorder import HEADER, MAGIC, NAME, SPAN

_RECORD = np.dtype(
    [
        ("tag", "S1"),
        ("name", "<u2"),
        ("kind", "u1"),
        ("thread", "<u4"),
        ("begin", "<i8"),
        ("end", "<i8"),
    ]
)
assert _RECORD.itemsize == SPAN.size


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time.

    Attributes:
        name: what.
        kind: CALL, BLOCK, WAIT or STEP.
        thread: number of the thread.
        begin: nanoseconds since the epoch.
        end: nanoseconds since the epoch.
    """

    name: str
    kind: int
    thread: int
    begin: int
    end: int

    @property
    def seconds(self) -> float:
        """Length."""
        return (self.end - self.begin) / 1e9


def read_spans(path: str | Path, since: int = 0) -> list[Span]:
    """Return the spans of one file, by begin; a last record that was cut off is left out.

    Args:
        path: the file.
        since: spans that ended before this are left out, in nanoseconds since the epoch; of a
            long trace, the end is read in a fraction of the time.

    Raises:
        ValueError: the file is no trace.
    """
    data = Path(path).read_bytes()
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is not a trace of a worker")
    _, offset, _ = HEADER.unpack_from(data)
    names: dict[int, str] = {}
    spans: list[Span] = []
    position, size = HEADER.size, len(data)
    while position < size:
        if data[position : position + 1] == b"N":
            if position + NAME.size > size:
                break
            _, number, length = NAME.unpack_from(data, position)
            position += NAME.size
            names[number] = data[position : position + length].decode(errors="replace")
            position += length
            continue
        count = _spans_from(data, position)
        if not count:
            break
        chosen = np.frombuffer(data, _RECORD, count, position)
        chosen = chosen[chosen["end"] >= since - offset]
        spans += [
            Span(names[number], kind, thread, begin + offset, end + offset)
            for _, number, kind, thread, begin, end in chosen.tolist()
        ]
        position += count * SPAN.size
    return sorted(spans, key=lambda span: span.begin)


def _spans_from(data: bytes, position: int) -> int:
    """Return how many whole spans follow each other; names are rare, so that runs are long."""
    tags = data[position :: SPAN.size]
    count = len(tags) - len(tags.lstrip(b"S"))
    return min(count, (len(data) - position) // SPAN.size)
