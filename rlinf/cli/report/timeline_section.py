"""The timeline of a few steps, small enough for a page, and what `rlinf trace` says of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.cli.timeline.critical_path import critical_path
from rlinf.cli.timeline.lanes import DRIVER, Timeline, is_busy, is_waiting, load_timeline
from rlinf.cli.timeline.picture import colours_of
from rlinf.cli.timeline.summary import Summary, summarise
from rlinf.scheduler.trace import Span

SUMMARY_STEPS = 100
"""Steps that are added up, the last ones, without the first of the run."""

SHOWN_STEPS = 3
MOST_PIECES = 40_000
"""Pieces of the timeline on the page; a window with more is cut shorter."""

BUSY, WAITING = 0, 1


@dataclass
class TimelineSection:
    """What the page says of the time.

    Attributes:
        summary: of the last steps; None if there is nothing to explain.
        shown: the timeline for the page's script; None as well.
        note: what to know of it, or why there is nothing.
    """

    summary: Summary | None = None
    shown: dict[str, Any] | None = None
    note: str = ""


def timeline_section(folder: Path) -> TimelineSection:
    """Read the end of a run's traces."""
    try:
        timeline = load_timeline(folder, last=SUMMARY_STEPS + 1)
        first = 1 if len(timeline.steps) > 1 else 0
        summary = summarise(timeline, first)
    except ValueError as error:
        return TimelineSection(note=str(error))
    steps = timeline.steps[first:][-SHOWN_STEPS:]
    shown, whole = for_page(timeline, steps)
    names = f"{steps[0].name} to {steps[-1].name}" if len(steps) > 1 else steps[0].name
    note = f"{names.capitalize()} of {timeline.steps[-1].name.removeprefix('step ')}"
    note += "." if whole else "; the rest has too many pieces for a page: see rlinf trace."
    return TimelineSection(summary, shown, note)


def for_page(
    timeline: Timeline, steps: list[Span], most: int = MOST_PIECES
) -> tuple[dict[str, Any], bool]:
    """Return a window of the timeline, in microseconds since its begin.

    Args:
        timeline: the run.
        steps: those to show, in order; fewer are shown if they have too many pieces.
        most: how many pieces there may be.

    Returns:
        The window, and whether it contains all of the steps. Each lane has `pieces`, flat: begin,
        length, number of the name, BUSY or WAITING; `path` is the critical path, flat: number of
        the lane, begin, length.
    """
    whole = True
    while len(steps) > 1 and _count(timeline, steps[0].begin, steps[-1].end) > most:
        steps, whole = steps[1:], False
    begin, end = steps[0].begin, steps[-1].end
    while _count(timeline, begin, end) > most:
        end, whole = begin + (end - begin) // 2, False
    order = sorted(timeline.lanes.values(), key=lambda lane: lane.name != DRIVER)
    cut = [lane.between(begin, end) for lane in order]
    # Waiting is pale, whatever it is for: only what is done needs a colour of its own.
    done = list(dict.fromkeys(p.name for pieces in cut for p in pieces if is_busy(p)))
    names = {name: number for number, name in enumerate(done)}
    lanes = []
    for lane, of_lane in zip(order, cut, strict=True):
        pieces: list[int] = []
        for piece in of_lane:
            if is_busy(piece) or is_waiting(piece):
                number = names.setdefault(piece.name, len(names))
                kind = BUSY if is_busy(piece) else WAITING
                pieces += [*_place(piece.begin, piece.end, begin), number, kind]
        lanes.append({"name": lane.name, "pieces": pieces})
    index = {lane.name: number for number, lane in enumerate(order)}
    path: list[int] = []
    for step in steps:
        for link in critical_path(timeline, step):
            if link.begin < end:
                path += [index[link.lane], *_place(link.begin, min(link.end, end), begin)]
    window = {
        "length": (end - begin) // 1000,
        "steps": [[s.name, *_place(s.begin, s.end, begin)] for s in steps if s.end <= end],
        "names": list(names),
        "colours": colours_of(done),
        "lanes": lanes,
        "path": path,
    }
    return window, whole


def _count(timeline: Timeline, begin: int, end: int) -> int:
    return sum(len(lane.between(begin, end)) for lane in timeline.lanes.values())


def _place(begin: int, end: int, zero: int) -> tuple[int, int]:
    """Begin and length in microseconds."""
    return (begin - zero) // 1000, (end - begin) // 1000
