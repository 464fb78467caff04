"""Runs whose envs play while the learner learns: who of the two waited for the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf.cli.timeline.lanes import Lane, Timeline, is_busy, is_waiting
from rlinf.scheduler.trace import CALL, Span
from rlinf.utils.numbers import percent

AHEAD = "the learner, as far ahead of it as allowed"
"""What those who play wait for between two rollouts."""
PLAYING, RECEIVING, LEARNING = ("interact", "generate"), "recv_rollout_batch", "run_training"
_WORTH_SAYING = 0.05
_MUCH_SLOWER = 0.2
_LOOKED_AT = 20
"""Steps that tell whether rollouts and updates take turns."""
_TOGETHER = 0.1
"""Share of a rollout or an update that is more than the clocks of two processes differ by."""


@dataclass(frozen=True)
class Overlap:
    """Who waited in a run whose halves work at the same time.

    Attributes:
        learner: name of the group that learns.
        starved: share of the time in which it waits for rollouts.
        ahead: by process that plays, share of the time in which it has nothing to play, since it
            is as far ahead of the learner as it may be.
        busiest: what those who play do most: group, what, and share of the time.
    """

    learner: str
    starved: float
    ahead: Mapping[str, float]
    busiest: tuple[str, str, float]


def find_overlap(timeline: Timeline, steps: Sequence[Span]) -> Overlap | None:
    """Return who waited in some steps; None if rollouts and updates take turns."""
    players = [lane for lane in timeline.workers if _calls(lane, *PLAYING)]
    learners = [lane for lane in timeline.workers if _calls(lane, LEARNING)]
    if not players or not learners or not _overlap(players, learners, steps[-_LOOKED_AT:]):
        return None
    total = sum(step.seconds for step in steps)
    receiving = [
        sum(_waiting_in(lane, call, step) for call in _calls(lane, RECEIVING) for step in steps)
        for lane in learners
    ]
    return Overlap(
        learners[0].group,
        max(receiving) / total,
        {lane.name: sum(_idle(lane, step) for step in steps) / total for lane in players},
        _busiest(players, steps, total),
    )


def players_of(timeline: Timeline) -> set[str]:
    """Return the names of the processes that play."""
    return {lane.name for lane in timeline.workers if _calls(lane, *PLAYING)}


def overlap_sentence(found: Overlap, advice: Mapping[str, str]) -> str:
    """Say who of the two is the limit, and what to change.

    Args:
        found: who waited.
        advice: what to change, by the block that takes most of the time.
    """
    # The one that waits least decides how fast rollouts come.
    ahead = min(found.ahead.values())
    groups = ", ".join(dict.fromkeys(name.partition(":")[0] for name in found.ahead))
    waits = (
        f"{found.learner} waits for rollouts {percent(found.starved, 0)} of the time, {groups} for "
        f"the learner, as far ahead as algorithm.max_policy_age allows, {percent(ahead, 0)}"
    )
    if max(ahead, found.starved) < _WORTH_SAYING:
        return f"neither rollouts nor updates are the limit: {waits}."
    if ahead > found.starved:
        return f"update is the limit: {waits}: {advice['training']}."
    group, what, share = found.busiest
    said = f"rollout is the limit: {waits}; {_slowest(found)}its largest part is {what} of {group}"
    hint = advice.get(what, "look at what it does there with a profiler (py-spy)")
    return f"{said}, {percent(share, 0)}: {hint}."


def _slowest(found: Overlap) -> str:
    """Return words on a process that the others are far ahead of; none if there is none."""
    group = found.busiest[0]
    own = {n: share for n, share in found.ahead.items() if n.partition(":")[0] == group}
    slow = min(own, key=lambda name: own[name])
    if max(own.values()) - own[slow] < _MUCH_SLOWER:
        return ""
    others = percent(max(own.values()), 0)
    return f"{slow} is the slowest, others have nothing to play {others} of the time; "


def _calls(lane: Lane, *methods: str) -> list[Span]:
    return [span for span in lane.calls if span.kind == CALL and span.name in methods]


def _overlap(players: Sequence[Lane], learners: Sequence[Lane], steps: Sequence[Span]) -> bool:
    """Return whether somebody plays in the middle of an update of some steps."""
    updates, rollouts = (
        [span for lane in lanes for span in _calls(lane, *names) if span.end > steps[0].begin]
        for lanes, names in ((learners, (LEARNING,)), (players, PLAYING))
    )
    return any(
        min(span.end, update.end) - max(span.begin, update.begin)
        > _TOGETHER * min(span.end - span.begin, update.end - update.begin)
        for span in rollouts
        for update in updates
    )


def _waiting_in(lane: Lane, call: Span, step: Span) -> float:
    begin, end = max(call.begin, step.begin), min(call.end, step.end)
    pieces = lane.between(begin, end) if end > begin else []
    return sum(piece.seconds for piece in pieces if is_waiting(piece))


def _idle(lane: Lane, step: Span) -> float:
    pieces = lane.between(step.begin, step.end)
    return step.seconds - sum(p.seconds for p in pieces if is_busy(p) or is_waiting(p))


def _busiest(
    players: Sequence[Lane], steps: Sequence[Span], total: float
) -> tuple[str, str, float]:
    seconds: dict[tuple[str, str, str], float] = {}
    for lane in players:
        for step in steps:
            for piece in lane.between(step.begin, step.end):
                if is_busy(piece):
                    key = lane.group, piece.name, lane.name
                    seconds[key] = seconds.get(key, 0.0) + piece.seconds
    (group, what, _), taken = max(seconds.items(), key=lambda entry: entry[1])
    return group, what, taken / total
