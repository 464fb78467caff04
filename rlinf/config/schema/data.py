"""The `data` section: where prompts, or demonstrations, come from."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section


class DataConfig(Section):
    """Prompts for training and validation; the schema registered for `type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"dataset": "type"}

    type: str = Field(
        "files",
        description="Registered dataset: files, reasoning_gym, arithmetic, calculations, programs, "
        "...",
    )
    apply_chat_template: bool = Field(False, description="Wrap prompts in the chat template.")
    system_prompt: str | None = Field(
        None, description="First message of every prompt; needs the chat template."
    )
    prompt_template: str = Field(
        "{prompt}", description="What becomes of a text: `{prompt}` in it is replaced."
    )
    max_prompt_length: Int = Field(256, gt=0, description="Most tokens of a prompt.")
    filter_prompt_by_length: bool = Field(
        False, description="Leave out longer prompts; false makes them an error."
    )
    rollout_batch_size: Int = Field(..., gt=0, description="Prompts per step.")
    val_group_size: Int = Field(
        1,
        gt=0,
        description="Responses per validation prompt: 1 takes the likeliest tokens and gives "
        "pass@1; more are drawn, and give pass@k as well.",
    )
    shuffle: bool = Field(True, description="Shuffle training prompts, anew every epoch.")
    seed: Int | None = Field(
        None, ge=0, description="Seed of order and generated prompts; null is runner.seed."
    )


class EpisodeDataConfig(Section):
    """Episodes to learn from."""

    train_data_paths: list[str] = Field(
        ..., min_length=1, description="Folders of LeRobot datasets (offline, sft, reward_model)."
    )
    max_episodes: Int | None = Field(
        None, gt=0, description="Learn from so many episodes, the first ones; null is all."
    )
    observations: dict[str, str] = Field(
        default_factory=dict,
        description="By observation of the env, the feature of the dataset that holds it, where "
        "names do not tell: `{main_images: observation.images.top}`.",
    )


class OfflineDataConfig(EpisodeDataConfig):
    """Episodes that a policy learns from."""

    only_success: bool = Field(
        False, description="Learn only from episodes that solved their task."
    )
    train_data_weights: list[Annotated[Float, Field(gt=0)]] | None = Field(
        None,
        description="Weight of each folder of train_data_paths: its share of the samples, whatever "
        "its size; null weighs all frames alike.",
    )


class SFTDataConfig(OfflineDataConfig):
    """Episodes to be trained on, and some to be compared with."""

    held_out_ratio: Float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the episodes that are not learned from, drawn by runner.seed: each "
        "evaluation has the loss on them.",
    )


class RewardModelDataConfig(EpisodeDataConfig):
    """Episodes that a reward model learns from."""

    val_fraction: Float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of the episodes, of those that solved their task and of the others, "
        "that the reward model is not trained on but evaluated with.",
    )
    success_persists: bool = Field(
        False,
        description="Count all observations after the first success of an episode as solved; "
        "false takes `next.success` of each step as it is.",
    )
