"""The chain of work that a step could not have been shorter than.

Walks back from the end of a step: while a process computes, that is part of the path; where it
waited, the path goes on with whoever it waited for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlinf.cli.timeline.lanes import DRIVER, Lane, Piece, Timeline, is_busy, is_waiting
from rlinf.scheduler.trace import Span

_PEER = re.compile(r"a message from (\S+)")
_CALL = re.compile(r"(\S+)\.(\w+)\(\)")


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
    """The path of one step, from its begin to its end, without gaps."""
    links: list[Link] = []
    lane, now = timeline.lanes[DRIVER], step.end
    visited: set[tuple[str, int]] = set()
    while now > step.begin:
        piece = lane.at(now)
        if piece is not None and is_waiting(piece):
            other = _awaited(timeline, lane, piece, now)
            if other is not None and (other.name, now) not in visited:
                visited.add((lane.name, now))
                lane = other
                continue
        begin = max(step.begin, piece.begin if piece is not None else _last_end(lane, now))
        if piece is None or not is_busy(piece):
            if lane.name != DRIVER and (DRIVER, now) not in visited:
                # It had nothing to do: whoever was to call it is the one to look at.
                visited.add((lane.name, now))
                lane = timeline.lanes[DRIVER]
                continue
            name = piece.name if piece is not None and piece.name else "between calls"
        else:
            name = piece.name
        links.append(Link(lane.name, name, begin, now))
        now = begin
    return links[::-1]


def _last_end(lane: Lane, now: int) -> int:
    return max((piece.end for piece in lane.pieces if piece.end < now), default=0)


def _awaited(timeline: Timeline, lane: Lane, piece: Piece, now: int) -> Lane | None:
    """Who let a process wait, at the end of its wait."""
    peer = _PEER.match(piece.name)
    if peer is not None:
        return timeline.lanes.get(peer.group(1))
    call = _CALL.match(piece.name)
    if call is None:
        return None
    group, method = call.groups()
    ranks = [other for other in timeline.workers if other.group == group]
    ended = [
        (span.end, other.name)
        for other in ranks
        for span in other.calls
        if span.name == method and span.begin < now and span.end <= now + 5_000_000
    ]
    return timeline.lanes[max(ended)[1]] if ended else None
