"""The `reward` section: what a sample is worth."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section
from rlinf.config.schema.model import TokenizerConfig


class RewardConfig(Section):
    """Rule-based rewards; the schema registered for `reward_type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"reward": "reward_type"}

    group_name: str = Field("RewardGroup", description="Name of the group of reward workers.")
    reward_type: str | None = Field(
        None,
        description="Registered reward: math, code, searchr1, vqa, reasoning_gym, arithmetic, ...",
    )
    reward_scale: Float = Field(1.0, description="Factor on the score.")
    reward_min_val: Float | None = Field(None, description="Least reward; null is no bound.")
    reward_max_val: Float | None = Field(None, description="Greatest reward; null is no bound.")
    tokenizer: TokenizerConfig = Field(
        default_factory=TokenizerConfig, description="Turns responses into text."
    )
    timeout: Float = Field(
        10.0, gt=0, description="Time for one sample (s); past it the sample scores 0."
    )
    num_processes: Int = Field(
        1, gt=0, description="Processes per reward worker, each with one sample at a time."
    )
    process_memory_mb: Int = Field(4096, gt=0, description="Address space of such a process (MiB).")


class RewardModelSource(Section):
    """Where the reward model comes from; the run that trained it says what network it is."""

    model_path: str | None = Field(
        None,
        description="Run that trained the reward model, or one of its checkpoints, in a folder "
        "that all reward workers see.",
    )


class EmbodiedRewardConfig(Section):
    """Rewards of a model that looks at observations, instead of the env's or added to them."""

    group_name: str = Field("RewardGroup", description="Name of the group of reward workers.")
    use_reward_model: bool = Field(
        False, description="Let the policy learn from the rewards of a reward model."
    )
    reward_mode: Literal["per_step", "terminal"] = Field(
        "per_step",
        description="Which chunks of actions get a reward of the model: each, by the observation "
        "that it led to, or only those that end an episode.",
    )
    reward_weight: Float = Field(1.0, description="Factor on the reward of the model.")
    env_reward_weight: Float = Field(
        0.0, description="Factor on the reward of the env, which is added; 0 leaves it out."
    )
    reward_threshold: Float = Field(
        0.6,
        gt=0,
        lt=1,
        description="Probability of success from which an observation counts as solved.",
    )
    use_reward_prob: bool = Field(
        False,
        description="Reward the probability itself; false rewards 1 where the task counts as "
        "solved, and 0 elsewhere.",
    )
    model: RewardModelSource = Field(
        default_factory=RewardModelSource, description="The reward model."
    )
