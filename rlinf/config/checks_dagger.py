"""Rules of experts: DAgger's, and whoever collects episodes."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.env_plugins import UnknownName, is_folder, require_name
from rlinf.config.errors import Problem
from rlinf.config.task_types import OFFLINE


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


@cross_check(("embodied", *OFFLINE))
def experts_are_known(context: CheckContext) -> Iterator[Problem]:
    """Experts and gates are registered; the folder of a policy is found where it is read."""
    cfg = context.cfg
    section = cfg.env.train
    env_type = "" if section is None else section.env_type
    dagger = cfg.algorithm.get("dagger")
    if dagger is not None:
        yield from _known("algorithm.dagger.expert", "expert", dagger.expert, env_type)
        yield from _known("algorithm.dagger.gate", "gate", dagger.gate)
    if cfg.get("collect") is not None and section is not None:
        yield from _known("collect.policy", "expert", cfg.collect.policy, env_type)


def _known(path: str, kind: str, name: str | None, env_type: str = "") -> Iterator[Problem]:
    if name is None or (kind == "expert" and is_folder(name)):
        return
    try:
        require_name(kind, name, env_type)
    except UnknownName as error:
        yield Problem(path, name, str(error), error.hint)
