"""Busy and waiting time of each process, and one sentence on what to change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rlinf.cli.timeline.critical_path import critical_path
from rlinf.cli.timeline.lanes import Timeline, is_busy, is_waiting
from rlinf.cli.timeline.overlap import AHEAD, find_overlap, overlap_sentence, players_of
from rlinf.cli.timeline.verdict import ADVICE, sentence


@dataclass
class LaneSummary:
    """Seconds of one process within the steps.

    Attributes:
        busy: by block.
        waiting: by what was waited for.
        idle: between calls.
    """

    busy: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    idle: float = 0.0


@dataclass
class Summary:
    """Where the time of some steps went.

    Attributes:
        steps: how many.
        seconds: of all steps together.
        lanes: by process.
        path: seconds on the critical path by (group, what).
        sentence: the bottleneck, and what to change.
    """

    steps: int
    seconds: float
    lanes: dict[str, LaneSummary]
    path: dict[tuple[str, str], float]
    sentence: str


def summarise(timeline: Timeline, first: int = 0, last: int | None = None) -> Summary:
    """Add up some steps; all of them by default.

    Raises:
        ValueError: the run has no finished step.
    """
    steps = timeline.steps[first:last]
    if not steps:
        raise ValueError("the run has no finished step of training: there is nothing to explain")
    lanes = {name: LaneSummary() for name in timeline.lanes}
    path: dict[tuple[str, str], float] = {}
    for step in steps:
        for name, lane in timeline.lanes.items():
            _add(lanes[name], lane.between(step.begin, step.end), step.seconds)
        for link in critical_path(timeline, step):
            group = timeline.lanes[link.lane].group
            path[group, link.name] = path.get((group, link.name), 0.0) + link.seconds
    total = sum(step.seconds for step in steps)
    overlap = find_overlap(timeline, steps)
    if overlap is not None:
        for name in players_of(timeline):
            # Whoever plays ahead has nothing to do only because it may not be further ahead.
            lanes[name].waiting[AHEAD], lanes[name].idle = lanes[name].idle, 0.0
        return Summary(len(steps), total, lanes, path, overlap_sentence(overlap, ADVICE))
    groups = Counter(lane.group for lane in timeline.lanes.values())
    return Summary(len(steps), total, lanes, path, sentence(path, groups))


def _add(lane: LaneSummary, pieces: list, seconds: float) -> None:
    known = 0.0
    for piece in pieces:
        if is_busy(piece):
            lane.busy[piece.name] = lane.busy.get(piece.name, 0.0) + piece.seconds
        elif is_waiting(piece):
            lane.waiting[piece.name] = lane.waiting.get(piece.name, 0.0) + piece.seconds
        else:
            continue
        known += piece.seconds
    lane.idle += max(0.0, seconds - known)
