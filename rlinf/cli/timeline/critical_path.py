"""The chain of work that a step could not have been shorter than.

Walks back from the end of a step: while a process computes, that is part of the path; where it
waited, the path goes on with whoever it waited for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlinf.cli.timeline.lanes import DRIVER, Lane, Piece, Timeline, is_busy, is_waiting
from rlinf.scheduler.trace import Span

HAND_OVER = "hand-over"
_CLOCKS_DIFFER = 2_000_000
"""Nanoseconds by which the clocks of two processes may seem to differ."""

_PEER = re.compile(r"a message from (\S+)")
_CALL = re.compile(r"(\S+)\.(\w+)\(\)")
_ITEM = re.compile(r"an item of channel")


@dataclass(frozen=True)
class Link:
    """A piece of the critical path.

    Attributes:
        lane: the process.
        name: what it did.
        begin: nanoseconds since the epoch.
        end: nanoseconds since the epoch.
    """

    lane: str
    name: str
    begin: int
    end: int

    @property
    def seconds(self) -> float:
        """Length."""
        return (self.end - self.begin) / 1e9


def critical_path(timeline: Timeline, step: Span) -> list[Link]:
    """Return the path of one step, from its begin to its end, without gaps."""
    links: list[Link] = []
    lane, now = _cause(timeline, timeline.lanes[DRIVER], step.end), step.end
    while now > step.begin:
        piece = _last_active(lane, now)
        if piece is None or piece.end <= step.begin:
            links.append(Link(lane.name, "before the step", step.begin, now))
            break
        if piece.end < now:
            links.append(Link(lane.name, HAND_OVER, piece.end, now))
            now = piece.end
        begin = max(piece.begin, step.begin)
        links.append(Link(lane.name, piece.name or "between calls", begin, now))
        now = begin
        lane = _cause(timeline, lane, now)
    return links[::-1]


def _is_active(lane: Lane, piece: Piece) -> bool:
    """Return whether a process moves the run on; the driver does so between its waits."""
    return not is_waiting(piece) if lane.name == DRIVER else is_busy(piece)


def _last_active(lane: Lane, now: int) -> Piece | None:
    """Return the last thing that a process had begun to do before a moment."""
    return next((p for p in lane.backwards(now) if _is_active(lane, p)), None)


def _cause(timeline: Timeline, lane: Lane, now: int) -> Lane:
    """Return who decided when a process could begin what it began at a moment."""
    before = lane.at(now)
    if before is not None and _is_active(lane, before):
        return lane
    if before is not None and is_waiting(before):
        return _awaited(timeline, before, now) or lane
    # It had nothing to do until it was called.
    driver = timeline.lanes[DRIVER]
    return driver if lane is driver else _cause(timeline, driver, now)


def _awaited(timeline: Timeline, wait: Piece, now: int) -> Lane | None:
    """Whom a process waited for."""
    peer = _PEER.match(wait.name)
    if peer is not None:
        return timeline.lanes.get(peer.group(1))
    if _ITEM.match(wait.name):
        return _last_at_work(timeline, wait, now)
    call = _CALL.match(wait.name)
    if call is None:
        return None
    group, method = call.groups()
    ended = [
        (span.end, lane.name)
        for lane in timeline.workers
        if lane.group == group
        for span in lane.calls
        if span.name == method and wait.begin < span.end <= now + _CLOCKS_DIFFER
    ]
    return timeline.lanes[max(ended)[1]] if ended else None


def _last_at_work(timeline: Timeline, wait: Piece, now: int) -> Lane | None:
    """Return who worked until a wait for a channel had its end.

    A channel does not tell who has put something into it. Whoever was the last to be busy meanwhile
    has, or has let somebody go on who has.
    """
    ended: list[tuple[int, str]] = []
    for lane in timeline.workers:
        piece = next((p for p in lane.backwards(now) if is_busy(p)), None)
        if piece is not None and piece.end > wait.begin and not _waits(lane, wait, now):
            ended.append((min(piece.end, now), lane.name))
    return timeline.lanes[max(ended)[1]] if ended else None


def _waits(lane: Lane, wait: Piece, now: int) -> bool:
    """Return whether a wait is this process's own."""
    return lane.at(now) == wait
