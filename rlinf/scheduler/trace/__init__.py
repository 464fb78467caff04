"""Spans of every process: what it did and what it waited for, written beside its log."""

from rlinf.scheduler.trace.reader import Span, read_spans
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
