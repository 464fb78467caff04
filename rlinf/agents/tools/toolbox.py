"""Calls tools for episodes: with a deadline, so many at a time, and answers of bounded length."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.agents.tools.tool import Rewarded, Tool, ToolError, tool_registry


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


class ToolFailed(RuntimeError):
    """A tool did not answer: no fault of the policy, so that its episode does not count."""


class Toolbox:
    """The tools of a run.

    Args:
        tools: names of registered tools, or tools.
        timeout: seconds that a call may take.
        concurrency: calls at a time; more wait.
        most_characters: of an answer; the rest is cut, and the answer says so.

    Raises:
        ValueError: a name is not known, or given twice.
    """

    def __init__(
        self,
        tools: Sequence[str | Tool],
        timeout: float = 10.0,
        concurrency: int = 64,
        most_characters: int = 4096,
    ) -> None:
        made = [tool_registry.lookup(each) if isinstance(each, str) else each for each in tools]
        self._tools = {each.name: each for each in made}
        if len(self._tools) < len(made):
            names = ", ".join(each.name for each in made)
            raise ValueError(f"the tools {names} do not have names of their own; name each once")
        self._timeout, self._most = timeout, most_characters
        self._room = asyncio.Semaphore(concurrency)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Schemas of the tools, as chat templates take them."""
        return [each.schema for each in self._tools.values()]

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return the names of the parameters of a tool."""
        return self._tools[name].parameters

    async def call(self, call: ToolCall | MalformedCall) -> ToolResult:
        """Do what a model wants; what it did wrong is an answer, too.

        Raises:
            ToolFailed: the tool did not answer in time.
        """
        if isinstance(call, MalformedCall):
            return ToolResult("", self._cut(call.problem), error=True)
        found = self._tools.get(call.name)
        if found is None:
            known = ", ".join(self._tools)
            return ToolResult("", f"there is no tool {call.name!r}, only {known}", error=True)
        try:
            arguments = found.read(call.arguments)
            value, reward = await self._run(found, arguments), 0.0
            if isinstance(value, Rewarded):
                value, reward = value.value, value.reward
            return ToolResult(found.name, self._cut(_text(value)), reward=reward)
        except ToolFailed:
            raise
        except ToolError as error:
            return ToolResult(found.name, self._cut(str(error)), error=True)
        except Exception as error:
            # A function of the user may raise anything; the model may ask in another way.
            said = f"{type(error).__name__}: {error}"
            return ToolResult(found.name, self._cut(said), error=True)

    async def _run(self, found: Tool, arguments: dict[str, Any]) -> Any:
        if found.inline and not found.is_async:
            return found(**arguments)
        async with self._room:
            answer = found(**arguments) if found.is_async else in_thread(found, arguments)
            try:
                return await asyncio.wait_for(answer, self._timeout)
            except asyncio.TimeoutError as error:
                raise ToolFailed(
                    f"the tool '{found.name}' did not answer within {self._timeout:g} s"
                ) from error

    def _cut(self, text: str) -> str:
        if len(text) <= self._most:
            return text
        return f"{text[: self._most]}... ({len(text) - self._most} characters more)"


async def in_thread(function: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a function in a thread of its own, which nothing waits for if it hangs."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function(**arguments)
        except Exception as raised:
            error = raised
        # A run that has ended does not wait for the answer.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True, name="tool").start()
    return await answer


def _text(value: Any) -> str:
    """Return an answer as a model reads it: texts as they are, other values as JSON."""
    if isinstance(value, str):
        return value
    if inspect.isawaitable(value):
        raise ToolError("the tool returned something to wait for; make its function async")
    return json.dumps(value, ensure_ascii=False, default=str)
