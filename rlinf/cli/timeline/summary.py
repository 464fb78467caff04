"""Busy and waiting time of each process, and one sentence on what to change."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.cli.timeline.critical_path import critical_path
from rlinf.cli.timeline.lanes import DRIVER, Timeline, is_busy, is_waiting

_ADVICE = {
    "env_step": "simulation is the limit: give env more processes (cluster.component_placement), "
    "or overlap it with the policy (rollout.pipeline_stage_num: 2)",
    "predict": "inference is the limit: place rollout on a GPU or on more ranks, or overlap it "
    "with simulation (rollout.pipeline_stage_num: 2)",
    "training": "the update is the limit: place actor on a GPU or on more ranks, use larger "
    "micro-batches, or fewer algorithm.update_epoch",
    "advantages": "computing advantages is the limit: give actor more ranks",
    "sync_weights": "weight sync is the limit: place actor and rollout on one node, or raise "
    "runner.weight_sync_interval",
    "offload": "moving weights between device and host is the limit: switch enable_offload off "
    "where memory allows",
}


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
        raise ValueError("the run has no finished step yet: there is nothing to explain")
    lanes = {name: LaneSummary() for name in timeline.lanes}
    path: dict[tuple[str, str], float] = {}
    for step in steps:
        for name, lane in timeline.lanes.items():
            _add(lanes[name], lane.between(step.begin, step.end), step.seconds)
        for link in critical_path(timeline, step):
            group = timeline.lanes[link.lane].group
            path[group, link.name] = path.get((group, link.name), 0.0) + link.seconds
    total = sum(step.seconds for step in steps)
    return Summary(len(steps), total, lanes, path, _sentence(path, lanes, total))


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


def _sentence(
    path: dict[tuple[str, str], float], lanes: dict[str, LaneSummary], total: float
) -> str:
    (group, what), seconds = max(path.items(), key=lambda entry: entry[1])
    members = [lane for name, lane in lanes.items() if name.partition(":")[0] == group]
    busy = sum(sum(lane.busy.values()) for lane in members) / len(members) / total
    who = "the driver" if group == DRIVER else f"{group} ({_count(len(members))})"
    advice = _ADVICE.get(what, "look at what it does there with a profiler (py-spy)")
    share = f"{seconds / total:.0%} of a step is {what} of {who}"
    return f"{share}, busy {busy:.0%} of the time: {advice}."


def _count(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"
