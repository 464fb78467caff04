"""Environments of the `verifiers` package (0.1): they run episodes, with the policy as the model.

The environment calls a client of ours whenever it wants a response, and so all of its kinds work:
single answers, several turns, and tools. What it gets to read is rendered by the chat template of
the run, and only what is new is tokenised.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.agents.episode import Episode, EpisodeOver
from rlinf.agents.loops import AgentLoop, register_agent_loop
from rlinf.agents.templates import ChatFormat
from rlinf.agents.tools.parsers import parser_registry
from rlinf.agents.tools.toolbox import Toolbox, ToolCall, ToolFailed
from rlinf.agents.trajectory import Trajectory
from rlinf.utils.extras import install_hint

_PACKAGE = "verifiers>=0.1.14,<0.2"


def load_verifiers(name: str, arguments: Mapping[str, Any]) -> Any:
    """Load an environment of the package.

    Args:
        name: as `load_environment` names it.
        arguments: of its `load_environment`.

    Raises:
        ValueError: the package is not there.
    """
    try:
        import verifiers
    except ImportError as error:
        hint = install_hint(packages=[_PACKAGE])
        raise ValueError(f"agentloop.type verifiers needs the package verifiers: {hint}") from error
    if not hasattr(verifiers, "load_environment"):
        version = getattr(verifiers, "__version__", "of another kind")
        hint = install_hint(packages=[_PACKAGE])
        raise ValueError(
            f"verifiers {version} has no `load_environment`; its environments ask for an endpoint "
            f"instead. The adapter is for {_PACKAGE}: {hint}"
        )
    return verifiers.load_environment(name, **arguments)


@register_agent_loop("verifiers")
class VerifiersLoop(AgentLoop):
    """Lets an environment of `verifiers` run the episode; its rubric gives the score.

    Args:
        cfg: the `agentloop` section.
        tokenizer: of the model, with a chat template.
        tools: not used: the environment has its own.
    """

    def __init__(self, cfg: Any, tokenizer: Any, tools: Toolbox) -> None:
        super().__init__(cfg, tokenizer, tools)
        arguments = cfg.environment_args
        if isinstance(arguments, DictConfig):
            arguments = OmegaConf.to_container(arguments, resolve=True)
        self._env = load_verifiers(cfg.environment, arguments)
        self._client_class = _client_class()

    async def run(self, episode: Episode) -> Trajectory:
        """See `AgentLoop.run`."""
        question = episode.question
        if question.messages is None:
            raise ValueError(
                "environments of verifiers speak by messages, but the question is a text; set "
                "data.apply_chat_template to true"
            )
        row = {
            "prompt": [dict(message) for message in question.messages],
            "example_id": 0,
            **dict(question.metadata.get("verifiers", {})),
        }
        # What an episode is worth that ends at a limit of ours, where no rubric sees it.
        episode.score = 0.0
        client = self._client_class(Speaker(self, episode))
        state = await self._ask(self._env.rollout(row, client, "policy", {}))
        if state.get("error") is not None:
            over = _behind(state["error"], EpisodeOver)
            if over is not None:
                raise over
            raise ToolFailed(f"the environment '{self.cfg.environment}' failed: {state['error']!r}")
        await self._ask(self._env.rubric.score_rollout(state))
        episode.score = float(state["reward"] or 0.0)
        return episode.finish()

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        """Wait for an environment; one that fails costs its episode."""
        try:
            return await answer
        except (EpisodeOver, ToolFailed):
            raise
        except Exception as error:
            raise ToolFailed(
                f"the environment '{self.cfg.environment}' failed: {type(error).__name__}: {error}"
            ) from error


class Speaker:
    """The policy, as an environment asks it.

    Args:
        loop: whose tokenizer and parser it has.
        episode: that it speaks in.
    """

    def __init__(self, loop: VerifiersLoop, episode: Episode) -> None:
        self._loop, self._episode = loop, episode
        self._chat: ChatFormat | None = None
        self._read: list[dict[str, Any]] = []
        self._last: Any = None

    async def respond(
        self, messages: Sequence[Any], tools: Sequence[Any]
    ) -> tuple[str, list[ToolCall], bool]:
        """Let the policy answer a conversation.

        Args:
            messages: all of it.
            tools: that it may call, as the package describes them.

        Returns:
            What it wrote, the calls in it, and whether it was cut.
        """
        if self._chat is None:
            self._chat = ChatFormat(self._loop.tokenizer, [_schema(tool) for tool in tools])
        plain = [_plain(message) for message in messages]
        call = await self._episode.generate(self._ids(plain))
        self._last, self._read = call, plain
        text = self._episode.text(call)
        calls: list[ToolCall] = []
        if tools:
            box = _Named([_schema(tool)["function"] for tool in tools])
            parser = parser_registry.lookup(self._loop.cfg.parser)(box)
            calls = [each for each in parser.parse(text) if isinstance(each, ToolCall)]
        return text, calls, call.finish_reason == "length"

    def _ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return what the policy reads: the next turn of what it has read, or something new."""
        assert self._chat is not None
        before, last = self._read, self._last
        new = messages[len(before) + 1 :]
        if last is None or messages[: len(before)] != before or not new:
            for message in messages[len(before) :] if last is not None else ():
                self._episode.note(message["role"], message["content"])
            return self._chat.begin(messages)
        for message in new:
            self._episode.note(message["role"], message["content"])
        said = {"role": "assistant", "content": self._episode.text(last)}
        ended = last.response_ids[-1] == self._loop.tokenizer.eos_token_id
        return [*last.token_ids, *self._chat.between(before, said, new, ended)]


class _Named:
    """As much of a toolbox as parsers need."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        self._parameters = {
            each["name"]: tuple(each["parameters"].get("properties", {})) for each in schemas
        }
        self.names = tuple(self._parameters)

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return the names of the parameters of a tool."""
        return self._parameters[name]


def _client_class() -> type:
    """Return the class of clients that ask a `Speaker`; its base is of the package."""
    from verifiers import types
    from verifiers.clients import Client

    class EpisodeClient(Client):
        """Answers for the policy of a run."""

        async def get_response(
            self,
            prompt: Any,
            model: str,
            sampling_args: Any,
            tools: Any = None,
            **further: Any,
        ) -> Any:
            text, calls, cut = await self.client.respond(prompt, tools or ())
            made = [
                types.ToolCall(id=f"call_{i}", name=each.name, arguments=json.dumps(each.arguments))
                for i, each in enumerate(calls)
            ]
            reason = "length" if cut else "tool_calls" if made else "stop"
            message = types.ResponseMessage(
                content=text, tool_calls=made or None, finish_reason=reason, is_truncated=cut
            )
            return types.Response(
                id="episode", created=int(time.time()), model=model, message=message
            )

        def setup_client(self, config: Any) -> Any:
            raise NotImplementedError

        async def to_native_tool(self, tool: Any) -> Any:
            raise NotImplementedError

        async def to_native_prompt(self, messages: Any) -> Any:
            raise NotImplementedError

        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def raise_from_native_response(self, response: Any) -> None:
            raise NotImplementedError

        async def from_native_response(self, response: Any) -> Any:
            raise NotImplementedError

        async def close(self) -> None:
            """Do nothing: the episode is closed by who plays it."""

    return EpisodeClient


def _plain(message: Any) -> dict[str, Any]:
    """Return a message as chat templates take it."""
    found = message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    content = found.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    return {"role": found["role"], "content": content}


def _schema(tool: Any) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _behind(error: BaseException | None, kind: type) -> Any:
    """Return the exception of a kind that an error follows from; None without one."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error
