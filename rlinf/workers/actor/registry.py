"""Finds the learner of a run by `algorithm.loss_type`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.algorithms.registry import policy_loss_registry
from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call, check_call, check_method

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rlinf.workers.actor.learner import Learner

Kind = TypeVar("Kind", bound="type[Learner]")

_OF_POLICY_LOSSES = {
    "embodied": ("rlinf.workers.actor.embodied_learner", "EmbodiedLearner"),
    "reasoning": ("rlinf.workers.actor.reasoning_learner", "ReasoningLearner"),
    "agent": ("rlinf.workers.actor.reasoning_learner", "ReasoningLearner"),
    "coding": ("rlinf.workers.actor.reasoning_learner", "ReasoningLearner"),
}
"""Who learns by a registered policy loss, by the beginning of `runner.task_type`."""

_CONSTRUCTOR = (Call(("cfg", "model", "place")), Call(("cfg", "model", "place", "critic")))
"""How learners are made: of embodied tasks, and of reasoning tasks."""

_METHODS = {
    "prepare": (Call(("batch", "env_ids")),),
    "update": (Call(), Call(("tolerance", "critic_first"))),
    "rollout_needs": (Call(("cfg",)),),
}
"""How their methods are called; where there are two ways, as above."""

learner_registry: PluginTable[Any] = PluginTable(
    "loss",
    {
        "embodied_bc": "rlinf.workers.actor.imitation.cloning_learner",
        "embodied_dagger": "rlinf.workers.actor.imitation.dagger_learner",
        "offline_iql": "rlinf.workers.actor.offline.iql",
        "reward_model": "rlinf.workers.actor.reward_model.learner",
        "embodied_nft": "rlinf.workers.actor.nft_learner",
        "embodied_crossq": "rlinf.workers.actor.off_policy.crossq",
        "embodied_sac": "rlinf.workers.actor.off_policy.sac",
        "embodied_td3": "rlinf.workers.actor.off_policy.td3",
    },
)


def register_learner(
    name: str, *, schema: type[BaseModel] | None = None, replaces: bool = False
) -> Callable[[Kind], Kind]:
    """Register a learner for `algorithm.loss_type`.

    Args:
        name: What the user writes; case does not matter.
        schema: A pydantic model of further keys of the `algorithm` section.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator that leaves the class as it is. It raises a ValueError if the name is taken, or
        the class cannot be called as learners are.
    """

    def register(learner: Kind) -> Kind:
        what = f"learner '{name}'"
        check_call(what, learner, *_CONSTRUCTOR)
        for method, calls in _METHODS.items():
            check_method(what, learner, method, *calls)
        learner_registry.register(name, learner, schema=schema, replaces=replaces)
        return learner

    return register


def learner_of(cfg: Any) -> type[Learner]:
    """Return the class that learns in a run.

    Args:
        cfg: the configuration.

    Raises:
        ValueError: Nobody registered `algorithm.loss_type`, as a learner or as a policy loss.
    """
    name = cfg.algorithm.loss_type
    if name in learner_registry:
        return learner_registry.lookup(name)
    policy_loss_registry.lookup(name)
    module, learner = _OF_POLICY_LOSSES[cfg.runner.task_type.split("_")[0]]
    return getattr(importlib.import_module(module), learner)
