"""Spans of every process: what it did and what it waited for, written beside its log."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.trace.recorder import (
    BLOCK,
    CALL,
    SHORTEST_WAIT,
    STEP,
    WAIT,
    Recorder,
    current,
    mark_step,
    start,
)

__all__ = [
    "BLOCK",
    "CALL",
    "STEP",
    "WAIT",
    "SHORTEST_WAIT",
    "Recorder",
    "Span",
    "current",
    "mark_step",
    "read_spans",
    "start",
]


def __getattr__(name: str) -> Any:
    # Every worker records; hardly any process reads.
    if name in ("Span", "read_spans"):
        from rlinf.scheduler.trace import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
