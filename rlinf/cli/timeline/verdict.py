"""One sentence on the critical path: the phase that limits a step, or that none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf.cli.timeline.critical_path import HAND_OVER
from rlinf.cli.timeline.lanes import DRIVER
from rlinf.utils.numbers import percent

ROLLOUT, UPDATE, SYNC, OFFLOAD = "rollout", "update", "weight sync", "offloading"

_PHASE_OF = {
    "env_step": ROLLOUT,
    "interact": ROLLOUT,
    "predict": ROLLOUT,
    "generate": ROLLOUT,
    "rollout": ROLLOUT,
    "compute_rewards": "reward",
    "recv_rollout_batch": UPDATE,
    "inference": UPDATE,
    "values": UPDATE,
    "agreement": UPDATE,
    "advantages": UPDATE,
    "training": UPDATE,
    "run_training": UPDATE,
    "sync_weights": SYNC,
    "sync_model_to_rollout": SYNC,
    "sync_model_from_actor": SYNC,
    "onload": OFFLOAD,
    "offload": OFFLOAD,
}
"""By block of a worker: the part of a step that it belongs to."""

ADVICE = {
    "env_step": "give env more processes (cluster.component_placement), or overlap it with the "
    "policy (rollout.pipeline_stage_num: 2)",
    "predict": "place rollout on a GPU or on more ranks, or overlap it with simulation "
    "(rollout.pipeline_stage_num: 2)",
    "generate": "place rollout on a GPU or on more ranks, or let it run ahead of the update "
    "(algorithm.max_policy_age: 1)",
    "training": "place actor on a GPU or on more ranks, use larger micro-batches, or fewer "
    "algorithm.update_epoch",
    "advantages": "give actor more ranks",
    "inference": "give inference and reference more ranks",
    "values": "give critic more ranks",
    "sync_weights": "place actor and rollout on one node, or raise runner.weight_sync_interval",
    "offload": "switch enable_offload off where memory allows",
    HAND_OVER: "messages are slow to arrive: place the two on one node, or give them more cores",
}
"""By the block that takes most of the limiting phase: what to change."""

_MOST_PHASES = 4
_WORTH_SAYING = 0.01

Path = Mapping[tuple[str, str], float]
"""Seconds on the critical path, by group and what it did."""


def shares(path: Path) -> dict[str, float]:
    """Return the phases of a step with their shares of the critical path, the largest first."""
    phase_of_group = _phases_of_groups(path)
    seconds: dict[str, float] = {}
    for (group, what), taken in path.items():
        phase = _PHASE_OF.get(what) or phase_of_group[group]
        seconds[phase] = seconds.get(phase, 0.0) + taken
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda entry: -entry[1])
    return {phase: taken / total for phase, taken in ranked}


def sentence(path: Path, processes: Mapping[str, int]) -> str:
    """Say which phase limits a step, with its share, and what to change.

    Args:
        path: the critical path.
        processes: how many there are, by group.
    """
    ranked = shares(path)
    phase, share = next(iter(ranked.items()))
    phase_of_group = _phases_of_groups(path)
    parts = {
        (group, what): taken
        for (group, what), taken in path.items()
        if (_PHASE_OF.get(what) or phase_of_group[group]) == phase
    }
    (group, what), taken = max(parts.items(), key=lambda entry: entry[1])
    of_all = taken / sum(path.values())
    most = f"{what} of {_who(group, processes)}"
    advice = ADVICE.get(what, "look at what it does there with a profiler (py-spy)")
    if share > 0.5:
        part = f"mostly {most} with {percent(of_all, 0)}" if len(parts) > 1 else f"all of it {most}"
        return f"{phase} is the limit: {percent(share, 0)} of the critical path, {part}: {advice}."
    named = ", ".join(_words(ranked))
    return (
        f"no single limit: {named} of the critical path; its largest part is {most}, "
        f"{percent(of_all, 0)}: {advice}."
    )


def _words(ranked: Mapping[str, float]) -> Sequence[str]:
    said = [(phase, share) for phase, share in ranked.items() if share >= _WORTH_SAYING]
    return [f"{phase} {percent(share, 0)}" for phase, share in said[:_MOST_PHASES]]


def _phases_of_groups(path: Path) -> dict[str, str]:
    """Return what each group mostly does: for its hand-overs, and for blocks of one's own."""
    by_group: dict[str, dict[str, float]] = {}
    for (group, what), taken in path.items():
        of_group = by_group.setdefault(group, {})
        if what in _PHASE_OF:
            of_group[_PHASE_OF[what]] = of_group.get(_PHASE_OF[what], 0.0) + taken
    names = {group: "the driver" if group == DRIVER else group for group in by_group}
    return {
        group: max(of_group, key=lambda phase: of_group[phase]) if of_group else names[group]
        for group, of_group in by_group.items()
    }


def _who(group: str, processes: Mapping[str, int]) -> str:
    if group == DRIVER:
        return "the driver"
    count = processes[group]
    return f"{group} ({'1 process' if count == 1 else f'{count} processes'})"
