"""The `agentloop` section: how an agent plays an episode."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section
from rlinf.config.schema.search import SearchConfig


class ToolSettings(Section):
    """What a run says of one tool; null leaves it to the tool, or to the keys of all tools."""

    timeout: Float | None = Field(None, gt=0, description="Time for one attempt at a call (s).")
    concurrency: Int | None = Field(
        None, gt=0, description="Calls of it at a time, of each worker that calls it."
    )
    idempotent: bool | None = Field(
        None, description="Whether a call that was not answered may be made again."
    )
    retries: Int | None = Field(
        None, ge=0, description="Further attempts at a call that was not answered, if it may be."
    )
    max_characters: Int | None = Field(None, gt=0, description="Most characters of an answer.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the class of a tool that has a state, such as `seconds` of "
        "python.",
    )


class McpServerConfig(Section):
    """An MCP server: a command that is started and spoken to over its pipes, or an address."""

    command: str | None = Field(None, description="Program to start; spoken to over stdio.")
    args: list[str] = Field(default_factory=list, description="Arguments of the program.")
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Variables of its environment, besides a few such as PATH and HOME.",
    )
    cwd: str | None = Field(
        None, description="Folder where it is started; null is that of the run."
    )
    url: str | None = Field(None, description="Address of a server that runs already, over HTTP.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="Headers of requests to it, such as Authorization."
    )
    tools: list[str] | None = Field(
        None, description="Which of its tools the model may call; null is all of them."
    )
    prefix: str = Field("", description="What is put before the names of its tools.")
    start_timeout: Float = Field(30.0, gt=0, description="Time for it to answer at first (s).")
    max_restarts: Int = Field(
        100, ge=0, description="How often it is connected to, or started, again."
    )


class AgentLoopConfig(Section):
    """Turns, tools and limits; the schema registered for `type` adds its own keys."""

    plugin_selectors: ClassVar[dict[str, str]] = {"agent_loop": "type"}

    type: str = Field("tools", description="Registered loop: tools, single_turn, ...")
    tools: list[str] = Field(
        default_factory=list, description="Registered tools that the model may call."
    )
    search: SearchConfig | None = Field(
        None, description="What the tool search searches; needed if tools names it."
    )
    mcp_servers: dict[str, McpServerConfig] = Field(
        default_factory=dict, description="By a name, MCP servers whose tools the model may call."
    )
    parser: str = Field(
        "qwen",
        description="Format of tool calls: qwen (`<tool_call>`), llama_json, searchr1 (a tag per "
        "tool, answered in the text), ...",
    )
    eval_without_tools: bool = Field(
        False,
        description="Evaluate a second time with tools switched off: each call is answered as "
        "that of an unknown tool. The result is eval/pass@1_no_tools.",
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
        64, gt=0, description="Calls of each tool at a time, of each worker that calls it."
    )
    max_tool_characters: Int = Field(
        4096, gt=0, description="Most characters of an answer of a tool; the rest is cut."
    )
    tool_settings: dict[str, ToolSettings] = Field(
        default_factory=dict, description="By name of a tool, limits and options of its own."
    )
