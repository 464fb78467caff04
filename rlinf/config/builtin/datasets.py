"""Keys that the built-in datasets add to `data`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section


class FilesKeys(Section):
    """Keys of prompts in files."""

    train_data_paths: list[str] | None = Field(
        None, description="Files (JSONL, parquet) with training prompts."
    )
    val_data_paths: list[str] | None = Field(
        None, description="Files (JSONL, parquet) with validation prompts."
    )
    prompt_key: str = Field(
        "prompt", description="Field of a record with the prompt: a text, or a list of messages."
    )
    answer_key: str = Field("answer", description="Field of a record with the answer.")
    solution_key: str | None = Field(
        None, description="Field of a record with a worked solution, for supervised training."
    )


class GymTask(Section):
    """One task of reasoning-gym."""

    name: str = Field(..., description="Its name there: leg_counting, countdown, ...")
    weight: Float = Field(1.0, gt=0, description="Share of the prompts, relative to the others.")
    config: dict[str, Any] = Field(
        default_factory=dict, description="Its own settings; seed and size come from `data`."
    )


class ReasoningGymKeys(Section):
    """Keys of generated prompts of reasoning-gym."""

    tasks: list[GymTask] = Field(..., min_length=1, description="Which tasks, and how often.")
    size: Int = Field(10000, gt=0, description="Training prompts of an epoch.")
    val_size: Int = Field(
        256, ge=0, description="Validation prompts; none of them occurs in training."
    )
    num_workers: Int = Field(
        1, ge=0, description="Processes that generate ahead; 0 generates when a prompt is needed."
    )
    cache_dir: str | None = Field(
        None, description="Folder for prompts that are slow to make; null is ~/.cache/rlinf."
    )


class ArithmeticKeys(Section):
    """Keys of additions."""

    digits: Int = Field(2, ge=1, le=3, description="Digits of both numbers.")
    held_out: Float = Field(
        0.1, gt=0, lt=1, description="Share of the problems that only validation uses."
    )
    val_size: Int | None = Field(
        None, gt=0, description="Most validation prompts; null is all that are held out."
    )


class CalculationsKeys(Section):
    """Keys of calculations in words."""

    digits: Int = Field(3, ge=1, le=6, description="Most digits of a number.")
    terms: Int = Field(3, ge=2, le=6, description="Most numbers of a calculation.")
    held_out: Float = Field(
        0.1, gt=0, lt=1, description="Share of all calculations that only validation uses."
    )
    size: Int = Field(10000, gt=0, description="Training prompts of an epoch.")
    val_size: Int = Field(200, gt=0, description="Validation prompts.")


class OneLinersKeys(Section):
    """Keys of lines of code to complete."""

    depth: Int = Field(2, ge=1, le=3, description="Operations within operations, at most.")
    mistakes: Float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability that an operation of a worked solution is a wrong one, as in code "
        "that nobody has tested.",
    )
    held_out: Float = Field(
        0.1, gt=0, lt=1, description="Share of all lines that only validation uses."
    )
    size: Int = Field(20000, gt=0, description="Training prompts of an epoch.")
    val_size: Int = Field(200, gt=0, description="Validation prompts.")


register_schema("dataset", "reasoning_gym", ReasoningGymKeys)
register_schema("dataset", "one_liners", OneLinersKeys)
register_schema("dataset", "calculations", CalculationsKeys)
register_schema("dataset", "arithmetic", ArithmeticKeys)
register_schema("dataset", "files", FilesKeys)
