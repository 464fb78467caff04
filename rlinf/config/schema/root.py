"""The whole config: which sections there are, and what each of them is for each type of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from pydantic import Field, create_model

from rlinf.config.alternatives import any_of
from rlinf.config.schema.actor import (
    CriticConfig,
    EmbodiedActorConfig,
    ReasoningActorConfig,
    RewardModelActorConfig,
)
from rlinf.config.schema.agentloop import AgentLoopConfig
from rlinf.config.schema.algorithm import (
    EmbodiedAlgorithmConfig,
    OfflineAlgorithmConfig,
    ReasoningAlgorithmConfig,
)
from rlinf.config.schema.base import Section
from rlinf.config.schema.cluster import ClusterConfig
from rlinf.config.schema.collect import CollectConfig
from rlinf.config.schema.data import (
    DataConfig,
    OfflineDataConfig,
    RewardModelDataConfig,
    SFTDataConfig,
)
from rlinf.config.schema.env import EnvSection
from rlinf.config.schema.inference import InferenceConfig, ReferenceConfig
from rlinf.config.schema.reward import EmbodiedRewardConfig, RewardConfig
from rlinf.config.schema.rollout import EmbodiedRolloutConfig, ReasoningRolloutConfig
from rlinf.config.schema.rollout_server import RolloutServerConfig
from rlinf.config.schema.runner import (
    EmbodiedRunnerConfig,
    OfflineRunnerConfig,
    ReasoningRunnerConfig,
    RewardModelRunnerConfig,
    RunnerConfig,
)
from rlinf.config.schema.tools import ToolsConfig
from rlinf.config.schema.weight_syncer import ReasoningWeightSyncerConfig, WeightSyncerConfig
from rlinf.config.walk import find

SECTIONS: dict[str, str] = {
    "cluster": "Machines, devices, and the place of every component on them.",
    "runner": "What the run does, how long, and what it leaves behind.",
    "algorithm": "What is optimised and how.",
    "env": "Environments for training and for evaluation.",
    "data": "Prompts for training and validation, or episodes to learn from.",
    "agentloop": "How an agent plays an episode: turns, tools, limits.",
    "tools": "Workers that run the tools of agents.",
    "rollout": "How the policy produces samples.",
    "rollout_server": "The endpoint by which clients use the policy while it learns.",
    "actor": "The policy that is trained.",
    "critic": "A value function with a network of its own.",
    "reward": "What a sample is worth.",
    "inference": "Workers that only recompute log-probabilities.",
    "reference": "Workers that hold the reference policy.",
    "weight_syncer": "How new weights reach the rollout.",
    "collect": "Episodes that `rlinf collect` writes into a dataset.",
    "example": "Free keys for examples of worker groups.",
}
"""Section name to one line about it, in the order of the documentation."""


@dataclass(frozen=True)
class Task:
    """The sections of a `runner.task_type`; there are no others.

    Attributes:
        required: Sections that must be there.
        used: Sections that are filled with defaults when they are absent.
        optional: Sections that are null when they are absent.
        components: Components that must have a placement.
        model_category: Category that the models must be of; None when there are none.
        defaults: By section, defaults of keys that are others than those of the schema.
    """

    required: Mapping[str, Any]
    used: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    model_category: str | None = None
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def fill(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with the task's own defaults where it says nothing."""
        filled = dict(data)
        for name, values in self.defaults.items():
            section = filled.get(name)
            if section is None and name not in self.required:
                section = {}
            if isinstance(section, Mapping):
                filled[name] = {**values, **section}
        return filled


_OFFLINE = Task(
    required={
        "cluster": ClusterConfig,
        "runner": OfflineRunnerConfig,
        "algorithm": OfflineAlgorithmConfig,
        "data": OfflineDataConfig,
        "env": EnvSection,
        "rollout": EmbodiedRolloutConfig,
        "actor": EmbodiedActorConfig,
    },
    used={"weight_syncer": WeightSyncerConfig},
    optional={"collect": CollectConfig},
    components=("actor", "env", "rollout"),
    model_category="embodied",
)

_REASONING = Task(
    required={
        "cluster": ClusterConfig,
        "runner": ReasoningRunnerConfig,
        "algorithm": ReasoningAlgorithmConfig,
        "data": DataConfig,
        "rollout": ReasoningRolloutConfig,
        "actor": ReasoningActorConfig,
        "reward": RewardConfig,
    },
    used={
        "inference": InferenceConfig,
        "reference": ReferenceConfig,
        "weight_syncer": ReasoningWeightSyncerConfig,
    },
    optional={"critic": CriticConfig},
    components=("actor", "rollout", "reward"),
    model_category="reasoning",
)

TASKS: dict[str, Task] = {
    "workers": Task(
        required={"runner": RunnerConfig},
        used={"cluster": ClusterConfig},
        optional={"example": dict[str, Any]},
    ),
    "embodied": Task(
        required={
            "cluster": ClusterConfig,
            "runner": EmbodiedRunnerConfig,
            "algorithm": EmbodiedAlgorithmConfig,
            "env": EnvSection,
            "rollout": EmbodiedRolloutConfig,
            "actor": EmbodiedActorConfig,
        },
        used={"weight_syncer": WeightSyncerConfig},
        optional={"collect": CollectConfig, "reward": EmbodiedRewardConfig},
        components=("actor", "env", "rollout"),
        model_category="embodied",
    ),
    "offline": _OFFLINE,
    "sft": replace(_OFFLINE, required={**_OFFLINE.required, "data": SFTDataConfig}),
    "reward_model": Task(
        required={
            "cluster": ClusterConfig,
            "runner": RewardModelRunnerConfig,
            "data": RewardModelDataConfig,
            "actor": RewardModelActorConfig,
        },
        used={"algorithm": OfflineAlgorithmConfig},
        # To collect the data in.
        optional={"env": EnvSection, "collect": CollectConfig},
        components=("actor",),
        model_category="reward",
        defaults={"algorithm": {"loss_type": "reward_model"}},
    ),
    "reasoning": _REASONING,
    "reasoning_eval": Task(
        required={
            "cluster": ClusterConfig,
            "runner": ReasoningRunnerConfig,
            "data": DataConfig,
            "rollout": ReasoningRolloutConfig,
            "reward": RewardConfig,
        },
        # Sections of a training, so that its config can be evaluated as it is.
        optional={
            "algorithm": ReasoningAlgorithmConfig,
            "actor": ReasoningActorConfig,
            "agentloop": AgentLoopConfig,
            "critic": CriticConfig,
            "inference": InferenceConfig,
            "reference": ReferenceConfig,
            "weight_syncer": ReasoningWeightSyncerConfig,
        },
        components=("rollout", "reward"),
        model_category="reasoning",
        # Of the algorithm only sampling_params matter, and there is no step.
        defaults={
            "runner": {"only_eval": True},
            "algorithm": {"adv_type": "raw", "loss_type": "actor"},
            "data": {"rollout_batch_size": 1},
        },
    ),
    "agent": replace(
        _REASONING,
        required={**_REASONING.required, "agentloop": AgentLoopConfig},
        used={**_REASONING.used, "tools": ToolsConfig},
    ),
    "coding_online_rl": replace(
        _REASONING,
        used={**_REASONING.used, "rollout_server": RolloutServerConfig},
        components=(*_REASONING.components, "rollout_server"),
    ),
}
"""What each task type has."""


class Config(Section):
    """A whole config.

    Attributes:
        task_of_config: The task type that it is for; None is any of them.
    """

    task_of_config: ClassVar[str | None] = None


@cache
def root_model(task_type: str | None = None) -> type[Config]:
    """Return the model of a whole config for one task type.

    Args:
        task_type: A key of `TASKS`; None takes what any of them has.

    Returns:
        A model whose fields are the sections.
    """
    if task_type is None:
        merged = any_of(tuple(root_model(name) for name in TASKS))
        merged.task_of_config = None
        return merged
    task = TASKS[task_type]
    fields: dict[str, Any] = {}
    for name, about in SECTIONS.items():
        if name in task.required:
            fields[name] = (task.required[name], Field(..., description=about))
        elif name in task.used:
            kind = task.used[name]
            fields[name] = (kind, Field(default_factory=kind, description=about))
        elif name in task.optional:
            fields[name] = (task.optional[name] | None, Field(None, description=about))
    model = create_model("Config", __base__=Config, **fields)
    model.task_of_config = task_type
    return model


def tasks_with(keys: Sequence[Any]) -> list[str]:
    """Return the task types whose configs have a key.

    Args:
        keys: Keys and list positions that lead to it.
    """
    return [name for name in TASKS if find(root_model(name), keys)[1] is not None]
