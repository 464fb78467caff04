"""The `data` section: where prompts come from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlinf.config.schema.base import Int, Section


class DataConfig(Section):
    """Prompts for training and validation."""

    type: str = Field("math", description="Kind of dataset; decides how records are read.")
    dataset_name: str | None = Field(
        None, description="Name of a generated dataset; null reads files."
    )
    dataset_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the dataset as they are."
    )
    train_data_paths: list[str] | None = Field(
        None, description="Files (JSONL, parquet) with training prompts."
    )
    val_data_paths: list[str] | None = Field(
        None, description="Files (JSONL, parquet) with validation prompts."
    )
    prompt_key: str = Field("prompt", description="Field of a record that holds the prompt.")
    answer_key: str = Field("answer", description="Field of a record that holds the answer.")
    apply_chat_template: bool = Field(False, description="Wrap prompts in the chat template.")
    max_prompt_length: Int = Field(256, gt=0, description="Most tokens of a prompt.")
    filter_prompt_by_length: bool = Field(
        False, description="Leave out longer prompts; false makes them an error."
    )
    rollout_batch_size: Int = Field(..., gt=0, description="Prompts per step.")
    val_rollout_batch_size: Int | None = Field(
        None, gt=0, description="Prompts per validation batch; null is all of them."
    )
    shuffle: bool = Field(True, description="Shuffle training prompts, anew every epoch.")
    validation_shuffle: bool = Field(False, description="Shuffle validation prompts.")
    seed: Int | None = Field(None, ge=0, description="Seed of the order; null is runner.seed.")
    num_workers: Int = Field(0, ge=0, description="Processes that load records.")
