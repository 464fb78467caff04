"""Rules between the keys of an agent's config: its loop, its tools, and how long episodes are."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf.config.checks import CheckContext, cross_check
from rlinf.config.errors import Problem
from rlinf.config.plugins import UnknownPlugin, known_names
from rlinf.config.tracked import to_plain

AGENTS = ("agent",)
LEVELS = ("group_level", "agent_level", "turn_level")
"""What `algorithm.loss_scales` may name, in this order."""
WITH_TOOLS = ("tools", "team")
"""Loops that call tools."""
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
    if section.type.lower() in WITH_TOOLS and not section.tools and not section.mcp_servers:
        message = f"is empty: the loop of type {section.type} needs one"
        hint = "name one, such as calculator; or set agentloop.type to single_turn"
        yield Problem("agentloop.tools", [], message, hint)


@cross_check(AGENTS)
def settings_are_those_of_tools(context: CheckContext) -> Iterator[Problem]:
    """Limits and options are given to tools that the run has."""
    section = context.cfg.agentloop
    if section.mcp_servers:
        # What tools they have is known when they have been asked.
        return
    names = [name.lower() for name in section.tools]
    for name in section.tool_settings:
        if name.lower() not in names:
            message = "is not one of agentloop.tools"
            hint = f"add it there, or take it out; there are: {', '.join(section.tools) or 'none'}"
            yield Problem(f"agentloop.tool_settings.{name}", name, message, hint)


@cross_check(AGENTS)
def environments_are_known(context: CheckContext) -> Iterator[Problem]:
    """The environment of a loop of type env is registered; one of verifiers speaks by messages."""
    cfg = context.cfg
    section = cfg.agentloop
    if section.type.lower() == "env" and section.env.lower() not in known_names("text_env"):
        unknown = UnknownPlugin("text_env", section.env)
        yield Problem("agentloop.env", section.env, str(unknown), unknown.hint)
    if section.type.lower() == "verifiers" and not cfg.data.apply_chat_template:
        message = "environments of verifiers speak by messages, but there is no chat template"
        hint = "set data.apply_chat_template to true"
        yield Problem("agentloop.type", section.type, message, hint)


@cross_check(AGENTS)
def mcp_servers_can_be_reached(context: CheckContext) -> Iterator[Problem]:
    """A server is started, or is at an address."""
    for name, server in context.cfg.agentloop.mcp_servers.items():
        path = f"agentloop.mcp_servers.{name}"
        if (server.command is None) == (server.url is None):
            both = "has a command and a url" if server.command else "has no command and no url"
            hint = "give a command to start, or the url of one that runs"
            yield Problem(path, to_plain(server), both, hint)
        elif server.command is not None and server.headers:
            yield Problem(f"{path}.headers", list(server.headers), "are for servers with a url")
        elif server.url is not None and (server.args or server.env or server.cwd):
            yield Problem(path, server.url, "args, env and cwd are for servers with a command")


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
def workers_have_room(context: CheckContext) -> Iterator[Problem]:
    """The context of a worker fits into a sequence, and its prompt has its task."""
    cfg = context.cfg
    section = cfg.agentloop
    if section.type.lower() != "team":
        return
    if "{task}" not in section.worker_prompt:
        message = "has no {task}: a worker would not know what to do"
        yield Problem("agentloop.worker_prompt", section.worker_prompt, message)
    total, longest = section.worker_max_tokens, cfg.runner.seq_length
    if total is not None and longest is not None and total > longest:
        message = f"is more than runner.seq_length, the most tokens of a sequence: {longest}"
        yield Problem("agentloop.worker_max_tokens", total, message)


@cross_check(AGENTS)
def long_episodes_are_dealt_with_once(context: CheckContext) -> Iterator[Problem]:
    """The penalty for long responses is for one response, and an episode has several."""
    buffer = context.cfg.algorithm.overlong_buffer_length
    if buffer:
        message = "punishes a single response for its length, and episodes have several"
        hint = "leave it out, and set agentloop.overlong"
        yield Problem("algorithm.overlong_buffer_length", buffer, message, hint)


@cross_check(("agent", "reasoning", "coding_online_rl"))
def credit_fits_the_loss(context: CheckContext) -> Iterator[Problem]:
    """Turns and agents are those of episodes; scales are of means per turn, in their order."""
    cfg = context.cfg
    algorithm = cfg.algorithm
    levels, mode = list(algorithm.loss_scales), algorithm.advantage_mode
    if cfg.runner.task_type == "reasoning":
        message = "is about the turns and agents of episodes, and a response is one turn"
        hint = "leave it out, or set runner.task_type to agent"
        if levels:
            yield Problem("algorithm.loss_scales", levels, message, hint)
        if mode != "trajectory":
            yield Problem("algorithm.advantage_mode", mode, message, hint)
        return
    if levels != [level for level in LEVELS if level in levels]:
        message = f"must name each level once, in the order {', '.join(LEVELS)}"
        yield Problem("algorithm.loss_scales", levels, message)
    if levels and algorithm.loss_agg_func != "seq-mean-token-mean":
        message = f"weighs means of turns, but loss_agg_func is {algorithm.loss_agg_func}"
        hint = "set algorithm.loss_agg_func to seq-mean-token-mean"
        yield Problem("algorithm.loss_scales", levels, message, hint)
    if mode != "trajectory" and algorithm.adv_type.lower() == "gae":
        message = "compares turns or agents, but gae has values that say what each token is worth"
        hint = "set it to trajectory; rewards of turns count there, too"
        yield Problem("algorithm.advantage_mode", mode, message, hint)


@cross_check(AGENTS)
def messages_have_a_template(context: CheckContext) -> Iterator[Problem]:
    """Tools whose answers are messages need the chat template."""
    cfg = context.cfg
    section = cfg.agentloop
    by_messages = section.type.lower() in WITH_TOOLS and section.parser.lower() in BY_MESSAGES
    if by_messages and not cfg.data.apply_chat_template:
        message = "answers of tools are messages in this format, but there is no chat template"
        hint = "set data.apply_chat_template to true, or agentloop.parser to searchr1"
        yield Problem("agentloop.parser", section.parser, message, hint)


@cross_check(AGENTS)
def tool_workers_have_work(context: CheckContext) -> Iterator[Problem]:
    """Workers of tools are placed where there are tools."""
    section = context.cfg.agentloop
    if "tools" in (context.world_sizes or {}) and not (section.tools or section.mcp_servers):
        message = "workers of tools would have nothing to do: agentloop.tools is empty"
        given = to_plain(context.cfg.cluster.component_placement)
        hint = "name some tools, or take tools out"
        yield Problem("cluster.component_placement", given, message, hint)
