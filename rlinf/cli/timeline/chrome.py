"""The timeline in the format that Perfetto and Chrome's tracing page open."""

from __future__ import annotations

import json
from pathlib import Path

from rlinf.cli.timeline.lanes import DRIVER, Timeline
from rlinf.scheduler.trace import WAIT


def write_chrome_trace(timeline: Timeline, path: str | Path) -> None:
    """Write one track per process: what it did, and in another colour what it waited for."""
    begins = [lane.pieces[0].begin for lane in timeline.lanes.values() if lane.pieces]
    zero = min(begins, default=0)
    events = []
    for number, lane in enumerate(timeline.lanes.values()):
        name = {"name": lane.name}
        events.append({"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": name})
        order = {"sort_index": -1 if lane.name == DRIVER else number}
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": order}
        )
        for piece in lane.pieces:
            if piece.name:
                events.append(_event(piece, number, zero, waits=piece.kind == WAIT))
        if lane.name == DRIVER:
            events += [_event(step, number, zero, track=1) for step in timeline.steps]
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _event(span: object, process: int, zero: int, waits: bool = False, track: int = 0) -> dict:
    event = {
        "ph": "X",
        "name": span.name,
        "cat": "wait" if waits else "work",
        "pid": process,
        "tid": track,
        "ts": (span.begin - zero) / 1000,
        "dur": (span.end - span.begin) / 1000,
    }
    return event | ({"cname": "grey"} if waits else {})
