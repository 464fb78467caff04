"""Keys of the agent loops that come with the package."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int, Section


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


register_schema("agent_loop", "team", TeamKeys)
