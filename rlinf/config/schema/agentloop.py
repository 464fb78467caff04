"""The `agentloop` section: how an agent plays an episode."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section


class AgentLoopConfig(Section):
    """Turns, tools and limits; the schema registered for `type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"agent_loop": "type"}

    type: str = Field("tools", description="Registered loop: tools, single_turn, ...")
    tools: list[str] = Field(
        default_factory=list, description="Registered tools that the model may call."
    )
    parser: str = Field(
        "qwen",
        description="Format of tool calls: qwen (`<tool_call>`), llama_json, searchr1 (a tag per "
        "tool, answered in the text), ...",
    )
    max_turns: Int = Field(8, gt=0, description="Most responses of each agent of an episode.")
    max_total_tokens: Int | None = Field(
        None,
        gt=0,
        description="Most tokens of a conversation: prompt, responses and what tools answer; null "
        "is runner.seq_length.",
    )
    overlong: Literal["score", "zero", "drop"] = Field(
        "score",
        description="What becomes of episodes that end at a limit: the reward judges what there "
        "is, they score 0, or they count neither in the loss nor in the baseline of their group.",
    )
    tool_timeout: Float = Field(
        10.0,
        gt=0,
        description="Time for one call of a tool (s); an episode whose tool does not answer does "
        "not count.",
    )
    tool_concurrency: Int = Field(
        64, gt=0, description="Calls of tools at a time, of each rollout worker."
    )
    max_tool_characters: Int = Field(
        4096, gt=0, description="Most characters of an answer of a tool; the rest is cut."
    )
