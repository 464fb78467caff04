"""Calls tools for episodes: with a deadline, so many at a time, and answers of bounded length.

What a model does wrong is an answer that it reads. What a tool does wrong, after the attempts that
it has, is a `ToolFailed`, and costs the episode.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf.agents.tools.answers import Answer, answer_from, cut
from rlinf.agents.tools.calling import answer_of, in_thread, within
from rlinf.agents.tools.slots import Slots
from rlinf.agents.tools.tool import Tool, ToolError, ToolFailed, tool_registry

__all__ = ["MalformedCall", "ToolCall", "ToolFailed", "ToolResult", "ToolSession", "Toolbox"]

_PAUSE_SECONDS = 0.05
"""Before the second attempt at a call; twice as long before each further one."""


@dataclass(frozen=True)
class ToolCall:
    """What a model wants done.

    Attributes:
        name: of the tool.
        arguments: by name.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class MalformedCall:
    """What a model wrote instead of a call that can be read.

    Attributes:
        problem: what is wrong with it; the model reads it.
    """

    problem: str


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered.

    Attributes:
        name: of the tool; empty if the call named none.
        text: what the model reads.
        error: whether it says what went wrong.
        reward: what the turn that called it is given for it.
    """

    name: str
    text: str
    error: bool = False
    reward: float = 0.0


@dataclass
class Usage:
    """What an episode has used of a tool.

    Attributes:
        calls: that were begun.
        errors: that were answered by an error.
        failures: that were not answered.
        retries: further attempts.
        seconds: from the call to its answer.
    """

    calls: int = 0
    errors: int = 0
    failures: int = 0
    retries: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ToolLimits:
    """What a call of a tool may take.

    Attributes:
        timeout: seconds of an attempt.
        concurrency: calls at a time.
        attempts: at a call that is not answered.
        most_characters: of an answer.
        options: of a tool with a state.
    """

    timeout: float = 10.0
    concurrency: int = 64
    attempts: int = 1
    most_characters: int = 4096
    options: Mapping[str, Any] = field(default_factory=dict)

    def for_tool(self, tool: Tool, settings: Mapping[str, Any] | None = None) -> ToolLimits:
        """Return those of one tool.

        Args:
            tool: its own limits go before these.
            settings: `timeout`, `concurrency`, `idempotent`, `retries`, `max_characters` and
                `options`; they go before both unless they are None.

        Raises:
            ValueError: the options are not those of the tool.
        """
        settings = settings or {}

        def first(name: str, *others: Any) -> Any:
            values = (settings.get(name), *others)
            return next((value for value in values if value is not None), None)

        idempotent = first("idempotent", tool.idempotent)
        options = tool.check_options(settings.get("options") or {})
        return ToolLimits(
            timeout=first("timeout", tool.timeout, self.timeout),
            concurrency=first("concurrency", tool.concurrency, self.concurrency),
            attempts=1 + first("retries", tool.retries) if idempotent else 1,
            most_characters=first("max_characters", self.most_characters),
            options=options,
        )


class Closes(Protocol):
    """Something to be closed."""

    def close(self) -> None:
        """Close it."""


class RemoteTools(Protocol):
    """Calls tools in other processes; see `rlinf.workers.tools.remote_tools`."""

    def session(self, timeouts: Mapping[str, float], metadata: Mapping[str, Any]) -> RemoteSession:
        """Return what calls them for an episode."""


class RemoteSession(Protocol):
    """Calls tools in other processes for one episode."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Make one attempt at a call.

        Raises:
            ToolFailed: there is no answer.
        """

    async def close(self) -> None:
        """Close what the episode has opened."""


class Toolbox:
    """The tools of a run.

    Args:
        tools: names of registered tools, or tools.
        timeout: seconds that a call may take, unless the tool has a deadline of its own.
        concurrency: calls of each tool at a time; more wait.
        most_characters: of an answer; the rest is cut, and the answer says so.
        settings: by name of a tool, what a config says of it; see `ToolLimits.for_tool`.
        remote: calls tools elsewhere, but for those that are `inline`; None calls all here.
        servers: what tools are connected to; closed with the box.

    Raises:
        ValueError: a name is not known, or given twice, or options are not those of a tool.
    """

    def __init__(
        self,
        tools: Sequence[str | Tool],
        timeout: float = 10.0,
        concurrency: int = 64,
        most_characters: int = 4096,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        remote: RemoteTools | None = None,
        servers: Sequence[Closes] = (),
    ) -> None:
        made = [tool_registry.lookup(each) if isinstance(each, str) else each for each in tools]
        self._tools = {each.name: each for each in made}
        if len(self._tools) < len(made):
            names = ", ".join(each.name for each in made)
            raise ValueError(f"the tools {names} do not have names of their own; name each once")
        common = ToolLimits(timeout, concurrency, 1, most_characters)
        own = {name.lower(): each for name, each in (settings or {}).items()}
        self._limits = {
            each.name: common.for_tool(each, own.get(each.name.lower())) for each in made
        }
        self._slots = {
            name: Slots(name, limits.concurrency) for name, limits in self._limits.items()
        }
        self._most, self._remote, self._servers = most_characters, remote, list(servers)
        unknown = own.keys() - {each.name.lower() for each in made}
        if unknown:
            self.close()
            raise ValueError(
                f"agentloop.tool_settings has {', '.join(sorted(unknown))}, but the tools are "
                f"{', '.join(self._tools) or 'none'}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Schemas of the tools, as chat templates take them."""
        return [each.schema for each in self._tools.values()]

    @property
    def stuck(self) -> bool:
        """Whether a tool has only places left that are held by calls that do not end."""
        return any(slots.all_stuck for slots in self._slots.values())

    @property
    def stateful(self) -> frozenset[str]:
        """Names of the tools that keep something open for an episode."""
        return frozenset(name for name, each in self._tools.items() if each.stateful)

    @property
    def longest(self) -> float:
        """The longest deadline of a tool (s)."""
        return max((each.timeout for each in self._limits.values()), default=0.0)

    def close(self) -> None:
        """Leave the servers that tools are connected to."""
        for server in self._servers:
            server.close()

    def prepare(self) -> None:
        """Let tools that have a method `prepare` of their class check what they need.

        Raises:
            Exception: what it raised; the tool cannot work here.
        """
        for name, each in self._tools.items():
            prepare = getattr(each.function, "prepare", None) if each.stateful else None
            if prepare is not None:
                prepare(**self._limits[name].options)

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return the names of the parameters of a tool."""
        return self._tools[name].parameters

    def session(self, metadata: Mapping[str, Any] | None = None) -> ToolSession:
        """Return what calls the tools for one episode; it has to be closed.

        Args:
            metadata: of the question; tools with a state may begin with it.
        """
        return ToolSession(self, metadata)

    async def call(self, call: ToolCall | MalformedCall) -> ToolResult:
        """Make a single call; see `ToolSession.call`."""
        session = self.session()
        try:
            return await session.call(call)
        finally:
            await session.close()


class ToolSession:
    """Calls tools for one episode, and keeps the state of those that have one.

    Args:
        box: the tools.
        metadata: of the question.

    Attributes:
        usage: of each tool, by name.
    """

    def __init__(self, box: Toolbox, metadata: Mapping[str, Any] | None = None) -> None:
        self._box, self._metadata = box, metadata or {}
        self.usage = {name: Usage() for name in box._tools}
        self._opened: dict[str, Any] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._remote: RemoteSession | None = None
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, call: ToolCall | MalformedCall) -> ToolResult:
        """Do what a model wants; what it did wrong is an answer, too.

        Raises:
            ToolFailed: the tool did not answer, or not what it says it does.
        """
        box = self._box
        if isinstance(call, MalformedCall):
            return ToolResult("", cut(call.problem, box._most), error=True)
        found = box._tools.get(call.name)
        if found is None:
            known = f", only {', '.join(box._tools)}" if box._tools else ""
            return ToolResult("", f"there is no tool {call.name!r}{known}", error=True)
        usage, begin = self.usage[found.name], time.perf_counter()
        usage.calls += 1
        try:
            result = await self._attempts(found, call)
            usage.errors += result.error
            return result
        except ToolFailed:
            usage.failures += 1
            raise
        finally:
            usage.seconds += time.perf_counter() - begin

    async def close(self) -> None:
        """Close what was opened for the episode; what goes wrong there is the tool's own loss."""
        self._closed = True
        opened, self._opened = self._opened, {}
        closing = [self._close(name, target) for name, target in opened.items()]
        if self._remote is not None:
            closing.append(self._remote.close())
        await asyncio.gather(*closing, return_exceptions=True)

    async def _attempts(self, tool: Tool, call: ToolCall) -> ToolResult:
        attempts = self._box._limits[tool.name].attempts
        for attempt in range(1, attempts + 1):
            try:
                return await self.attempt(call)
            except ToolFailed:
                if attempt == attempts:
                    raise
            self.usage[tool.name].retries += 1
            await asyncio.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
        raise AssertionError("a call has at least one attempt")

    async def attempt(self, call: ToolCall) -> ToolResult:
        """Make one attempt at a call of a tool that there is; see `call`."""
        box, tool = self._box, self._box._tools[call.name]
        most = box._limits[tool.name].most_characters
        try:
            arguments = tool.read(call.arguments)
        except ToolError as error:
            return ToolResult(tool.name, cut(str(error), most), error=True)
        except Exception as error:
            # A type of the user's own may raise anything; the model may ask in another way.
            return ToolResult(tool.name, cut(_said(error), most), error=True)
        if box._remote is not None and not tool.inline:
            # What goes wrong on the way there is no answer of the tool.
            return await self._elsewhere(box._remote, call)
        try:
            answer = await self._here(tool, arguments, most)
            return ToolResult(tool.name, answer.text, reward=answer.reward)
        except ToolFailed:
            raise
        except ToolError as error:
            return ToolResult(tool.name, cut(str(error), most), error=True)
        except (ConnectionError, TimeoutError) as error:
            # Nobody's fault who wrote the call: another attempt may go well.
            raise ToolFailed(f"the tool '{tool.name}' failed: {_said(error)}") from error
        except Exception as error:
            # A function of the user may raise anything; the model may ask in another way.
            return ToolResult(tool.name, cut(_said(error), most), error=True)

    async def _elsewhere(self, remote: RemoteTools, call: ToolCall) -> ToolResult:
        if self._closed:
            raise ToolFailed("the episode has ended")
        if self._remote is None:
            limits = self._box._limits
            timeouts = {name: each.timeout for name, each in limits.items()}
            self._remote = remote.session(timeouts, self._metadata)
        return await self._remote.call(call)

    async def _here(self, tool: Tool, arguments: dict[str, Any], most: int) -> Answer:
        if tool.inline and not (tool.is_async or tool.stateful or tool.yields):
            return answer_from(tool, tool(**arguments), most)
        if not tool.stateful:
            return await self._run(tool, lambda: answer_of(tool, tool.function, arguments, most))
        # What one call leaves behind is there for the next: one at a time.
        async with self._turns.setdefault(tool.name, asyncio.Lock()):
            if tool.name not in self._opened:
                self._opened[tool.name] = await self._open(tool)
            target = self._opened[tool.name]
            return await self._run(tool, lambda: answer_of(tool, target, arguments, most))

    async def _open(self, tool: Tool) -> Any:
        """Make the state of a tool.

        Raises:
            ToolFailed: it cannot be made, or not in time; no model can change that.
        """
        options = self._box._limits[tool.name].options
        opening: asyncio.Future[Any] | None = None

        def begin() -> asyncio.Future[Any]:
            nonlocal opening
            opening = in_thread(lambda: tool.open(options, self._metadata))
            return opening

        try:
            made = await self._run(tool, begin)
        except BaseException as error:
            if opening is not None and not opening.done():
                # It may still come, when nobody needs it any more.
                opening.add_done_callback(lambda late: self._close_late(tool.name, late))
            if isinstance(error, ToolFailed | ToolError) or not isinstance(error, Exception):
                raise
            raise ToolFailed(f"the tool '{tool.name}' cannot be opened: {_said(error)}") from error
        if self._closed:
            await self._close(tool.name, made)
            raise ToolFailed(f"the episode ended while the tool '{tool.name}' was opened")
        return made

    def _close_late(self, name: str, opened: asyncio.Future[Any]) -> None:
        """Close what was opened for a call that had been given up."""
        if opened.cancelled() or opened.exception() is not None:
            return
        task = asyncio.ensure_future(self._close(name, opened.result()))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _run(self, tool: Tool, begin: Callable[[], Any]) -> Any:
        """Wait for a place, begin a call there, and wait for its answer."""
        slots, seconds = self._box._slots[tool.name], self._box._limits[tool.name].timeout
        await slots.take()
        try:
            call = begin()
        except BaseException:
            slots.free()
            raise
        late = f"the tool '{tool.name}' did not answer within {seconds:g} s"
        return await within(call, slots, seconds, late)

    async def _close(self, name: str, target: Any) -> None:
        """Call `close` of a state, within the deadline of a call."""
        close = getattr(target, "close", None)
        if close is None:
            return
        seconds = self._box._limits[name].timeout
        if inspect.iscoroutinefunction(close):
            await asyncio.wait_for(close(), seconds)
        else:
            await asyncio.wait({in_thread(close)}, timeout=seconds)


def _said(error: BaseException) -> str:
    """Return what an exception says; one of a user may not even be able to."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
