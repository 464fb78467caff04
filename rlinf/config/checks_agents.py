"""Rules between the keys of an agent's config: its loop, its tools, and how long episodes are."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import Problem
from rlinf.config.plugins import UnknownPlugin, known_names

AGENTS = ("agent",)
BY_MESSAGES = ("llama_json", "qwen")
"""Formats of tool calls that are answered by messages."""


@cross_check(AGENTS)
def tools_are_known(context: CheckContext) -> Iterator[Problem]:
    """Tools and the format of their calls are registered."""
    section = context.cfg.agentloop
    named = [("tool", name, f"agentloop.tools.{i}") for i, name in enumerate(section.tools)]
    for kind, name, path in [*named, ("tool_parser", section.parser, "agentloop.parser")]:
        if name.lower() not in known_names(kind):
            unknown = UnknownPlugin(kind, name)
            yield Problem(path, name, str(unknown), unknown.hint)
    if section.type.lower() == "tools" and not section.tools:
        message = "is empty: the loop of type tools needs one"
        hint = "name one, such as calculator; or set agentloop.type to single_turn"
        yield Problem("agentloop.tools", [], message, hint)


@cross_check(AGENTS)
def episodes_have_room(context: CheckContext) -> Iterator[Problem]:
    """A conversation fits into a sequence, and its first response behind the longest prompt."""
    cfg = context.cfg
    total, longest = cfg.agentloop.max_total_tokens, cfg.runner.seq_length
    if total is None or longest is None:
        return
    if total > longest:
        message = f"is more than runner.seq_length, the most tokens of a sequence: {longest}"
        yield Problem("agentloop.max_total_tokens", total, message)
    elif total <= cfg.data.max_prompt_length:
        message = f"leaves no room behind a prompt of {cfg.data.max_prompt_length} tokens"
        hint = "raise it, or lower data.max_prompt_length"
        yield Problem("agentloop.max_total_tokens", total, message, hint)


@cross_check(AGENTS)
def long_episodes_are_dealt_with_once(context: CheckContext) -> Iterator[Problem]:
    """The penalty for long responses is for one response, and an episode has several."""
    buffer = context.cfg.algorithm.overlong_buffer_length
    if buffer:
        message = "punishes a single response for its length, and episodes have several"
        hint = "leave it out, and set agentloop.overlong"
        yield Problem("algorithm.overlong_buffer_length", buffer, message, hint)


@cross_check(AGENTS)
def messages_have_a_template(context: CheckContext) -> Iterator[Problem]:
    """Tools whose answers are messages need the chat template."""
    cfg = context.cfg
    section = cfg.agentloop
    by_messages = section.type.lower() == "tools" and section.parser.lower() in BY_MESSAGES
    if by_messages and not cfg.data.apply_chat_template:
        message = "answers of tools are messages in this format, but there is no chat template"
        hint = "set data.apply_chat_template to true, or agentloop.parser to searchr1"
        yield Problem("agentloop.parser", section.parser, message, hint)
