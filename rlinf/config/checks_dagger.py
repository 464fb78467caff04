"""Rules between the keys of DAgger."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import Problem


@cross_check(("embodied",))
def dagger_has_labels(context: CheckContext) -> Iterator[Problem]:
    """An expert is asked at every step, or only the env's own interventions are learned from."""
    algorithm = context.cfg.algorithm
    if "dagger" not in algorithm:
        return
    own, chunks = algorithm.dagger, context.cfg.actor.model.num_action_chunks
    if own.expert is None:
        if own.gate is not None:
            message = "has nobody to hand over to: algorithm.dagger.expert is null"
            yield Problem("algorithm.dagger.gate", own.gate, message, "name an expert")
        if not own.only_save_expert:
            message = "must be true: without algorithm.dagger.expert only interventions have labels"
            yield Problem("algorithm.dagger.only_save_expert", False, message, "set it to true")
    elif chunks != 1:
        message = f"must be 1: algorithm.dagger.expert {own.expert} is asked at every step"
        hint = "set it to 1, or algorithm.dagger.expert to null"
        yield Problem("actor.model.num_action_chunks", chunks, message, hint)
    if own.gate_release > own.gate_threshold:
        message = f"must not exceed gate_threshold, {own.gate_threshold}"
        path = "algorithm.dagger.gate_release"
        yield Problem(path, own.gate_release, message, "lower it: nearer is handed back")
