"""Keys of the agent loops that come with the package."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section


class TeamKeys(Section):
    """Keys of a lead and its workers."""

    max_workers: Int = Field(
        8, gt=0, description="Most workers of an episode; a task beyond them is refused."
    )
    worker_prompt: str = Field(
        "{task}",
        description="What a worker reads first; `{task}` is what the lead has written for it.",
    )
    worker_max_turns: Int | None = Field(
        None, gt=0, description="Most responses of a worker; null is agentloop.max_turns."
    )
    worker_max_tokens: Int | None = Field(
        None,
        gt=0,
        description="Most tokens of the context of a worker; null is agentloop.max_total_tokens.",
    )


class EnvLoopKeys(Section):
    """Keys of the loop of type `env`."""

    env: str = Field(..., description="Registered environment of text: guess_number, rooms, ...")
    env_options: dict[str, Any] = Field(default_factory=dict, description="Arguments of its class.")


class AttemptsLoopKeys(Section):
    """Keys of the loop of type `attempts`."""

    feedback: str = Field(
        "That is not right. Try again.", description="What the model reads after a wrong answer."
    )
    right: Float = Field(0.99, description="Score from which on an answer is right.")
    discount: Float = Field(
        1.0, gt=0, le=1, description="Factor of the score for each further attempt."
    )


class VerifiersLoopKeys(Section):
    """Keys of the loop of type `verifiers`."""

    environment: str = Field(
        ..., description="Environment of the package verifiers, as `load_environment` names it."
    )
    environment_args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of its `load_environment`."
    )


register_schema("agent_loop", "team", TeamKeys)
register_schema("agent_loop", "env", EnvLoopKeys)
register_schema("agent_loop", "attempts", AttemptsLoopKeys)
register_schema("agent_loop", "verifiers", VerifiersLoopKeys)
