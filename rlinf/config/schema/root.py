"""The whole config: which sections there are, and which of them a task needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import Field, create_model

from rlinf.config.schema.actor import ActorConfig, CriticConfig
from rlinf.config.schema.algorithm import AlgorithmConfig
from rlinf.config.schema.base import Section
from rlinf.config.schema.cluster import ClusterConfig
from rlinf.config.schema.data import DataConfig
from rlinf.config.schema.env import EnvSection
from rlinf.config.schema.inference import AgentLoopConfig, InferenceConfig, ReferenceConfig
from rlinf.config.schema.reward import RewardConfig
from rlinf.config.schema.rollout import RolloutConfig
from rlinf.config.schema.runner import RunnerConfig
from rlinf.config.schema.weight_syncer import WeightSyncerConfig

SECTIONS: dict[str, tuple[Any, str]] = {
    "cluster": (ClusterConfig, "Machines, devices, and the place of every component on them."),
    "runner": (RunnerConfig, "What the run does, how long, and what it leaves behind."),
    "algorithm": (AlgorithmConfig, "What is optimised and how."),
    "env": (EnvSection, "Environments for training and for evaluation."),
    "data": (DataConfig, "Prompts for training and validation."),
    "rollout": (RolloutConfig, "How the policy produces samples."),
    "actor": (ActorConfig, "The policy that is trained."),
    "critic": (CriticConfig, "A value function with a network of its own."),
    "reward": (RewardConfig, "What a sample is worth."),
    "inference": (InferenceConfig, "Workers that only recompute log-probabilities."),
    "reference": (ReferenceConfig, "Workers that hold the reference policy."),
    "weight_syncer": (WeightSyncerConfig, "How new weights reach the rollout."),
    "agentloop": (AgentLoopConfig, "Multi-turn episodes."),
    "example": (dict[str, Any], "Free keys for examples of worker groups."),
}
"""Section name to its schema and one line about it, in the order of the documentation."""


@dataclass(frozen=True)
class Task:
    """What a `runner.task_type` needs.

    Attributes:
        required: Sections that must be there.
        used: Sections that are filled with defaults when they are absent.
        components: Components that must have a placement.
        model_category: Category that the models must be of; None when there are none.
        defaults: By section, defaults of keys that are others than those of the schema.
    """

    required: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    model_category: str | None = None
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def fill(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a config with the task's own defaults where it says nothing."""
        filled = dict(data)
        for name, values in self.defaults.items():
            section = filled.get(name)
            if section is None and name not in self.required:
                section = {}
            if isinstance(section, Mapping):
                filled[name] = {**values, **section}
        return filled


TASKS: dict[str, Task] = {
    "workers": Task(used=("cluster",)),
    "embodied": Task(
        required=("cluster", "algorithm", "env", "rollout", "actor"),
        used=("reward", "weight_syncer"),
        components=("actor", "env", "rollout"),
        model_category="embodied",
    ),
    "embodied_eval": Task(
        required=("cluster", "env", "rollout"),
        used=("weight_syncer",),
        components=("env", "rollout"),
        model_category="embodied",
    ),
    "reasoning": Task(
        required=("cluster", "algorithm", "data", "rollout", "actor", "reward"),
        used=("inference", "reference", "weight_syncer"),
        components=("actor", "rollout", "reward"),
        model_category="reasoning",
        # A token costs no time: what comes of a response is worth as much to its first token.
        defaults={"algorithm": {"gamma": 1.0}},
    ),
    "reasoning_eval": Task(
        required=("cluster", "data", "rollout", "reward"),
        components=("rollout", "reward"),
        model_category="reasoning",
        # Of the algorithm only sampling_params matter, and there is no step.
        defaults={
            "runner": {"only_eval": True},
            "algorithm": {"adv_type": "raw", "loss_type": "actor"},
            "data": {"rollout_batch_size": 1},
        },
    ),
}
"""What each implemented task type needs."""


@cache
def root_model(task_type: str | None = None, lenient: bool = False) -> type[Section]:
    """Returns the model of a whole config for one task type.

    Args:
        task_type: A key of `TASKS`; None needs only `runner`.
        lenient: Let required sections be absent.

    Returns:
        A model whose fields are the sections.
    """
    task = TASKS.get(task_type or "", Task())
    fields: dict[str, Any] = {}
    for name, (kind, about) in SECTIONS.items():
        if name == "runner" or (name in task.required and not lenient):
            fields[name] = (kind, Field(..., description=about))
        elif name in task.used:
            fields[name] = (kind, Field(default_factory=kind, description=about))
        else:
            fields[name] = (kind | None, Field(None, description=about))
    return create_model("Config", __base__=Section, **fields)
