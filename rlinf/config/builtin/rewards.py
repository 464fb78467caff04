"""Keys that the built-in rewards add to `reward`."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section


class CodeKeys(Section):
    """Keys of the reward that runs programs in a sandbox."""

    memory_limit_mb: Int = Field(512, gt=0, description="Memory of one program (MiB).")
    max_tests: Int | None = Field(None, gt=0, description="Most tests per program; null is all.")
    test_timeout: Float = Field(5.0, gt=0, description="Time for one test of a program (s).")
    partial_credit: bool = Field(
        False, description="Score the share of passed tests; false scores 1 for all of them."
    )
    allow_weak_sandbox: bool = Field(
        False, description="Run programs also where the machine cannot confine them completely."
    )


class ReasoningGymRewardKeys(Section):
    """Keys of the reward that asks a reasoning-gym task."""

    answer_tag: str | None = Field(
        "answer", description="Tag around the answer; null takes the whole response."
    )


class VQAKeys(Section):
    """Keys of the reward for visual questions: weights of a sum."""

    qa_weight: Float = Field(1.0, ge=0, description="Weight of the right answer.")
    think_weight: Float = Field(0.0, ge=0, description="Weight of thinking once, before it.")
    answer_weight: Float = Field(0.0, ge=0, description="Weight of answering once.")


register_schema("reward", "code", CodeKeys)
register_schema("reward", "code_completion", CodeKeys)
register_schema("reward", "reasoning_gym", ReasoningGymRewardKeys)
register_schema("reward", "vqa", VQAKeys)
for _name in ("arithmetic", "math", "searchr1"):
    register_schema("reward", _name, None)
