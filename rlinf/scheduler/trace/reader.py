"""Reads the spans that processes wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlinf.scheduler.trace.recorder import HEADER, MAGIC, NAME, SPAN


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


def read_spans(path: str | Path) -> list[Span]:
    """Spans of one file, by begin; a last record that was cut off is left out.

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
        else:
            if position + SPAN.size > size:
                break
            _, number, kind, thread, begin, end = SPAN.unpack_from(data, position)
            position += SPAN.size
            spans.append(Span(names[number], kind, thread, begin + offset, end + offset))
    return sorted(spans, key=lambda span: span.begin)
