"""Keys that the built-in datasets add to `data`."""

from __future__ import annotations

from typing import Any, Literal

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


class FactsKeys(Section):
    """Keys of questions about people, for an agent that searches."""

    people: Int = Field(
        1000, ge=8, le=1024, description="People; for each of them there are four facts."
    )
    held_out: Float = Field(
        0.2, gt=0, lt=1, description="Share of the people that only validation asks about."
    )
    hops: list[Literal[1, 2]] = Field(
        [1, 2],
        min_length=1,
        description="Facts that a question needs: questions take these numbers in turn.",
    )
    careless: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the worked solutions of two facts that stop at the first one and "
        "answer wrongly, as people do.",
    )
    size: Int = Field(10000, gt=0, description="Training prompts of an epoch.")
    val_size: Int = Field(200, gt=0, description="Validation prompts.")


class ProgramsKeys(Section):
    """Keys of questions about a list that only a program can see."""

    digits: Int = Field(2, ge=1, le=6, description="Most digits of a number.")
    longest: Int = Field(4, ge=2, le=64, description="Most numbers of a list.")
    repairs: Float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the worked solutions that repair programs; the others answer with "
        "whatever the first program says, be it an error.",
    )
    held_out: Float = Field(
        0.1, gt=0, lt=1, description="Share of all questions that only validation uses."
    )
    size: Int = Field(10000, gt=0, description="Training prompts of an epoch.")
    val_size: Int = Field(200, gt=0, description="Validation prompts.")


class VerifiersKeys(Section):
    """Keys of questions of the package verifiers."""

    environment: str = Field(
        ..., description="Environment of the package, the same as `agentloop.environment`."
    )
    environment_args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of its `load_environment`."
    )
    val_size: Int = Field(200, gt=0, description="Most validation prompts.")


class WideQuestionsKeys(Section):
    """Keys of questions about several items."""

    max_items: Int = Field(5, ge=1, le=8, description="Most items of a question.")
    min_items: Int = Field(2, ge=1, le=8, description="Fewest items of a question.")
    team: bool = Field(
        True,
        description="Whether worked solutions are those of a lead and its workers; false lets one "
        "agent look everything up.",
    )
    careless: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the worked solutions of leads that give away no more than the three "
        "items which one agent has room for, and answer wrongly if there are more.",
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


register_schema("dataset", "wide_questions", WideQuestionsKeys)
register_schema("dataset", "reasoning_gym", ReasoningGymKeys)
register_schema("dataset", "verifiers", VerifiersKeys)
register_schema("dataset", "programs", ProgramsKeys)
register_schema("dataset", "one_liners", OneLinersKeys)
register_schema("dataset", "calculations", CalculationsKeys)
register_schema("dataset", "facts", FactsKeys)
register_schema("dataset", "arithmetic", ArithmeticKeys)
register_schema("dataset", "files", FilesKeys)
