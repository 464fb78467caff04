"""The `reward` section: what a sample is worth."""

from __future__ import annotations

from typing import ClassVar

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
