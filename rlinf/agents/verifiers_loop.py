"""Environments of the `verifiers` package (0.1): they run episodes, with the policy as the model.

The environment calls a client of ours whenever it wants a response, and so all of its kinds work:
single answers, several turns, and tools. What it gets to read is rendered by the chat template of
the run, and only what is new is tokenised.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.agents.episode import Episode, EpisodeOver
from rlinf.agents.loop_thread import LoopThread, Patience
from rlinf.agents.loops import AgentLoop, register_agent_loop
from rlinf.agents.serving.messages import for_template
from rlinf.agents.templates import ChatFormat, TemplateRewrites
from rlinf.agents.tools.parsers import parser_registry
from rlinf.agents.tools.toolbox import MalformedCall, Toolbox, ToolCall, ToolFailed, ToolResult
from rlinf.agents.trajectory import Trajectory
from rlinf.utils.extras import install_hint

_PACKAGE = "verifiers>=0.1.14,<0.2"
_BLOCKED = "an environment blocks the thread of all of them"


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

    Between two responses of the policy an environment has `agentloop.tool_timeout` seconds, and so
    has its rubric. Environments run in a thread, where the turns of others do not count. One that
    blocks it holds up other environments, and not the engine: after its time the thread is left
    alone, the episodes in it fail, and another thread is begun.

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
        self._thread: LoopThread | None = None

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
        patience = Patience(self.cfg.tool_timeout)
        speaker = Speaker(self, episode, patience)
        client = self._client_class(speaker)
        state = await self._ask(
            lambda: self._env.rollout(row, client, "policy", {}), patience, speaker.broken
        )
        if state.get("error") is not None:
            over = _behind(state["error"], EpisodeOver)
            if over is not None:
                raise over
            raise ToolFailed(f"the environment '{self.cfg.environment}' failed: {state['error']!r}")
        patience = Patience(self.cfg.tool_timeout)
        await self._ask(lambda: self._env.rubric.score_rollout(state), patience)
        episode.score = float(state["reward"] or 0.0)
        return episode.finish()

    async def _ask(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        patience: Patience,
        broken: asyncio.Future[BaseException] | None = None,
    ) -> Any:
        """Wait for an environment; one that fails or hangs costs its episode.

        Args:
            work: of the environment.
            patience: with it.
            broken: an error of ours that it was told of; it ends the run, whatever the environment
                makes of it.
        """
        if self._thread is None:
            self._thread = LoopThread(f"verifiers {self.cfg.environment}")
        thread = self._thread
        answer = thread.begin(work, patience)
        ends = {answer, patience.passed, *([] if broken is None else [broken])}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if broken is not None and broken.done():
                raise broken.result()
            if not answer.done():
                raise ToolFailed(await self._late(thread, patience))
            if answer.cancelled():
                why = f"did not answer; {_BLOCKED}" if thread.left else "cancelled itself"
                raise ToolFailed(f"the environment '{self.cfg.environment}' {why}")
            error = answer.exception()
        finally:
            patience.stop()
            answer.cancel()
        if error is None:
            return answer.result()
        if isinstance(error, EpisodeOver | ToolFailed):
            raise error
        raise ToolFailed(
            f"the environment '{self.cfg.environment}' failed: {type(error).__name__}: {error}"
        ) from error

    async def _late(self, thread: LoopThread, patience: Patience) -> str:
        """Say what has not answered; leave a thread that is blocked."""
        late = f"'{self.cfg.environment}' did not answer within {self.cfg.tool_timeout:g} s"
        if not await thread.is_blocked(patience):
            return late
        if self._thread is thread:
            self._thread = None
            thread.leave()
        return f"{late}; {_BLOCKED}"


class Speaker:
    """The policy, as an environment asks it.

    Args:
        loop: whose tokenizer and parser it has.
        episode: that it speaks in.
        patience: with the environment, which waits while the policy writes.

    Attributes:
        broken: an error that is neither of the environment nor an end of the episode.
    """

    def __init__(self, loop: VerifiersLoop, episode: Episode, patience: Patience) -> None:
        self._loop, self._episode, self._patience = loop, episode, patience
        self._home = asyncio.get_running_loop()
        self.broken: asyncio.Future[BaseException] = self._home.create_future()
        self._chat: ChatFormat | None = None
        # Of the environment; and as they were rendered, with what it was not told of.
        self._read: list[dict[str, Any]] = []
        self._context: list[dict[str, Any]] = []
        self._last: Any = None
        self._texts: set[str] = set()
        self._errors: list[dict[str, Any]] = []

    async def respond(
        self, messages: Sequence[Any], tools: Sequence[Any]
    ) -> tuple[str, list[ToolCall], bool]:
        """Let the policy answer a conversation; called in the thread of environments.

        The policy reads at once what is wrong with calls that cannot be read, and goes on. Beside
        others that can be, it reads that together with their answers.

        Args:
            messages: all of it.
            tools: that it may call, as the package describes them.

        Returns:
            What it wrote, the calls in it, and whether it was cut.
        """
        patience = self._patience
        patience.begin_wait()
        answer = asyncio.run_coroutine_threadsafe(self._respond(messages, tools), self._home)
        # When there is an answer, and not when a thread that is blocked takes it.
        answer.add_done_callback(lambda _: patience.end_wait())
        return await asyncio.wrap_future(answer)

    async def _respond(
        self, messages: Sequence[Any], tools: Sequence[Any]
    ) -> tuple[str, list[ToolCall], bool]:
        if self._patience.passed.done():
            raise ToolFailed("the episode is over, and its environment goes on")
        try:
            schemas = [_schema(tool) for tool in tools]
            plain = [_plain(message, self._texts) for message in messages]
        except Exception as error:
            raise ToolFailed(
                f"the environment '{self._loop.cfg.environment}' asked with messages or tools of "
                f"no known form: {type(error).__name__}: {error}"
            ) from error
        try:
            return await self._answer(plain, schemas)
        except (EpisodeOver, ToolFailed):
            raise
        except Exception as error:
            if not self.broken.done():
                self.broken.set_result(error)
            raise

    async def _answer(
        self, plain: list[dict[str, Any]], schemas: list[dict[str, Any]]
    ) -> tuple[str, list[ToolCall], bool]:
        """Let the policy answer messages, until it needs the environment."""
        if self._chat is None:
            self._chat = ChatFormat(self._loop.tokenizer, schemas)
        box = _Named([schema["function"] for schema in schemas])
        parser = parser_registry.lookup(self._loop.cfg.parser)(box)
        with self._rendering():
            ids = self._ids(plain)
        self._read = plain
        while True:
            self._last = call = await self._episode.generate(ids)
            text, cut = self._episode.text(call), call.finish_reason == "length"
            found = parser.parse(text) if schemas else []
            self._episode.note_calls(found)
            calls = [each for each in found if isinstance(each, ToolCall)]
            self._episode.count_calls(len(calls))
            wrong = [each for each in found if isinstance(each, MalformedCall)]
            if wrong and not cut:
                results = [ToolResult("", each.problem, error=True) for each in wrong]
                self._errors = parser.messages(results)
                self._episode.count_errors(len(wrong))
            if calls or cut or not wrong:
                if calls:
                    self._texts.add(text)
                return text, calls, cut
            ids = self._after([])

    @contextlib.contextmanager
    def _rendering(self) -> Iterator[None]:
        """Let messages that the chat template refuses be a failure of who wrote them."""
        from jinja2 import TemplateError

        try:
            yield
        except TemplateRewrites:
            raise
        except (TemplateError, ValueError) as error:
            raise ToolFailed(
                f"the environment '{self._loop.cfg.environment}' asked with messages that the chat "
                f"template refuses: {type(error).__name__}: {error}"
            ) from error

    def _ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return what the policy reads: the next turn of what it has read, or something new."""
        assert self._chat is not None
        before, last = self._read, self._last
        new = messages[len(before) + 1 :]
        if last is None or messages[: len(before)] != before or not new:
            for message in messages[len(before) :] if last is not None else ():
                self._episode.note(message["role"], message["content"])
            self._context, self._errors = messages, []
            return self._chat.begin(messages)
        return self._after(new)

    def _after(self, new: list[dict[str, Any]]) -> list[int]:
        """Return what the policy reads next: all until now, errors of its own, and messages."""
        assert self._chat is not None
        errors, last, self._errors = self._errors, self._last, []
        for message in errors:
            self._episode.note(message["role"], message["content"], error=True)
        for message in new:
            self._episode.note(message["role"], message["content"])
        said = {"role": "assistant", "content": self._episode.text(last)}
        ended = last.response_ids[-1] == self._loop.tokenizer.eos_token_id
        further = self._chat.between(self._context, said, [*errors, *new], ended)
        self._context = [*self._context, said, *errors, *new]
        return [*last.token_ids, *further]


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


def _plain(message: Any, own: Collection[str] = ()) -> dict[str, Any]:
    """Return a message as chat templates take it.

    Args:
        message: of an environment.
        own: what the policy wrote, with its calls: these are not to be rendered once more.
    """
    found = _mapping(message)
    content = found.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(_mapping(part).get("text", "")) for part in content)
    plain: dict[str, Any] = {"role": found["role"], "content": content}
    plain |= {name: found[name] for name in ("name", "tool_call_id") if found.get(name)}
    if found.get("tool_calls") and content not in own:
        plain["tool_calls"] = [_call(_mapping(call)) for call in found["tool_calls"]]
    return for_template(plain)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else value.model_dump(exclude_none=True)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in the form of OpenAI; the package has one without `function`."""
    function = _mapping(call.get("function", call))
    return {
        "id": call.get("id", ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


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
