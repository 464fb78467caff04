"""How an agent plays an episode: it answers at once, or uses tools until it has an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlinf.agents.episode import Episode
from rlinf.agents.templates import ChatFormat
from rlinf.agents.tools.build import make_toolbox, tool_schemas
from rlinf.agents.tools.parsers import parser_registry
from rlinf.agents.tools.toolbox import MalformedCall, RemoteTools, Toolbox, ToolCall, ToolResult
from rlinf.agents.trajectory import Ending, Trajectory
from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call, check_call, check_method

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rlinf.agents.calls import EngineCall

Loop = TypeVar("Loop", bound="type[AgentLoop]")

loop_registry: PluginTable[type[AgentLoop]] = PluginTable(
    "agent_loop",
    {
        "single_turn": "rlinf.agents.loops",
        "tools": "rlinf.agents.loops",
        "env": "rlinf.agents.env_loops",
        "attempts": "rlinf.agents.env_loops",
        "verifiers": "rlinf.agents.verifiers_loop",
        "team": "rlinf.agents.team",
    },
)


class AgentLoop:
    """Plays episodes; many at once, so that what differs between them belongs into `run`.

    Args:
        cfg: the `agentloop` section.
        tokenizer: of the model.
        tools: that `agentloop.tools` names.

    Attributes:
        judges: whether it asks the reward of the run, by `Episode.judge`.
    """

    judges: ClassVar[bool] = False

    def __init__(self, cfg: Any, tokenizer: Any, tools: Toolbox) -> None:
        self.cfg, self.tokenizer, self.tools = cfg, tokenizer, tools

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a response, besides the end token."""
        return ()

    @classmethod
    def told(cls, cfg: Any) -> list[dict[str, Any]]:
        """Return the tools that a chat template is told of; none if they answer in the text.

        Args:
            cfg: the `agentloop` section.
        """
        return [] if parser_registry.lookup(cfg.parser).inline else tool_schemas(cfg)

    async def run(self, episode: Episode) -> Trajectory:
        """Play an episode.

        Args:
            episode: a fresh one.

        Returns:
            What `episode.finish` returns.
        """
        raise NotImplementedError


def register_agent_loop(
    name: str, *, schema: type[BaseModel] | None = None, replaces: bool = False
) -> Callable[[Loop], Loop]:
    """Register a loop for `agentloop.type`.

    Args:
        name: What the user writes; case does not matter.
        schema: A pydantic model of further keys of the `agentloop` section.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator for subclasses of `AgentLoop`. It raises a ValueError if the name is taken, or
        the class cannot be used as loops are.
    """

    def register(cls: Loop) -> Loop:
        check_call(f"agent loop '{name}'", cls, Call(("cfg", "tokenizer", "tools")))
        check_method(f"agent loop '{name}'", cls, "run", Call(("episode",)))
        loop_registry.register(name, cls, schema=schema, replaces=replaces)
        return cls

    return register


@register_agent_loop("single_turn")
class SingleTurnLoop(AgentLoop):
    """One response to the question: the smallest agent."""

    async def run(self, episode: Episode) -> Trajectory:
        """See `AgentLoop.run`."""
        call = await episode.generate(episode.question.prompt_ids)
        return episode.finish("max_total_tokens" if call.finish_reason == "length" else "done")


@register_agent_loop("tools")
class ToolLoop(AgentLoop):
    """Responses and tools in turn, until a response calls none.

    Args:
        cfg: the `agentloop` section.
        tokenizer: of the model.
        tools: that `agentloop.tools` names.
    """

    def __init__(self, cfg: Any, tokenizer: Any, tools: Toolbox) -> None:
        super().__init__(cfg, tokenizer, tools)
        self.parser = parser_registry.lookup(cfg.parser)(tools)
        self._chat = None if self.parser.inline else ChatFormat(tokenizer, tools.schemas)

    @property
    def stops(self) -> tuple[str, ...]:
        """Those of the format of tool calls."""
        return self.parser.stops

    async def run(self, episode: Episode) -> Trajectory:
        """See `AgentLoop.run`."""
        question = episode.question
        ending, _ = await self.converse(episode, question.prompt_ids, question.messages)
        return episode.finish(ending)

    async def converse(
        self,
        episode: Episode,
        prompt_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]] | None,
        agent: int = 0,
        stop: Sequence[str] | None = None,
    ) -> tuple[Ending, str]:
        """Let an agent write and use tools until a response calls none.

        Args:
            episode: that it is of.
            prompt_ids: what it reads first.
            messages: the same as messages; None without a chat template.
            agent: its number.
            stop: see `Episode.generate`.

        Returns:
            How it ended, and its last response.

        Raises:
            EpisodeOver: it reached a limit.
        """
        ids: Sequence[int] = prompt_ids
        if self._chat is not None and messages is None:
            raise ValueError(
                f"agentloop.parser {self.cfg.parser} answers calls by messages, but the question "
                "is a text; set data.apply_chat_template to true"
            )
        said = list(messages or ())
        while True:
            call = await episode.generate(ids, agent, stop)
            text = episode.text(call)
            if call.finish_reason == "length":
                return "max_total_tokens", text
            calls = self.parser.parse(text)
            if not calls:
                return "done", text
            results = await self.use(episode, calls, agent)
            further = self._further(episode, said, call, text, results)
            ids = [*call.token_ids, *further]

    async def use(
        self, episode: Episode, calls: Sequence[ToolCall | MalformedCall], agent: int
    ) -> list[ToolResult]:
        """Do what an agent asks for.

        Args:
            episode: that it is of.
            calls: what it asks for.
            agent: its number.
        """
        return await episode.use_tools(calls, agent)

    def _further(
        self,
        episode: Episode,
        messages: list[Any],
        call: EngineCall,
        text: str,
        results: Sequence[ToolResult],
    ) -> list[int]:
        """Return the tokens that the model reads next; messages go to those of the conversation."""
        if self._chat is None:
            answer = self.parser.answer(results)
            error = any(result.error for result in results)
            episode.note("tool", answer, agent=call.agent, error=error)
            return list(self.tokenizer.encode(answer, add_special_tokens=False))
        said, new = {"role": "assistant", "content": text}, self.parser.messages(results)
        for message, result in zip(new, results, strict=True):
            episode.note("tool", message["content"], agent=call.agent, error=result.error)
        ended = call.response_ids[-1] == self.tokenizer.eos_token_id
        further = self._chat.between(messages, said, new, ended)
        messages += [said, *new]
        return further


def schemas_for_template(cfg: Any) -> list[dict[str, Any]]:
    """Return the tools that a chat template is told of; none if they answer in the text.

    Args:
        cfg: the `agentloop` section.
    """
    return loop_registry.lookup(cfg.type).told(cfg)


def make_loop(
    cfg: Any,
    tokenizer: Any,
    remote: RemoteTools | None = None,
    *,
    documents: Callable[[], Any] | None = None,
) -> tuple[AgentLoop, Toolbox]:
    """Make the loop and the tools of a config.

    Args:
        cfg: the `agentloop` section.
        tokenizer: of the model.
        remote: calls tools in other processes; None calls them here.
        documents: returns those that the data brings, for tools that search; None if it has none.

    Raises:
        ValueError: a name is not known, or the loop does not fit the tokenizer.
    """
    tools = make_toolbox(cfg, remote, documents)
    return loop_registry.lookup(cfg.type)(cfg, tokenizer, tools), tools
