"""From what a tool returned to what a model reads: checked, serialised, and of bounded length."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_jsonable_python

from rlinf.agents.tools.tool import Rewarded, Tool, ToolFailed


def cut(text: str, most: int) -> str:
    """Return a text, or its beginning with a note of how much is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text) - most} characters more)"


class Answer(NamedTuple):
    """What came of a call: the text that a model reads, and what the call was worth by itself."""

    text: str
    reward: float = 0.0


def answer_from(tool: Tool, value: Any, most: int) -> Answer:
    """Return an answer as a model reads it: texts as they are, other values as JSON.

    Args:
        tool: who gave it.
        value: what it returned.
        most: characters that are kept.

    Raises:
        ToolFailed: the value is not of the type that the tool says, or cannot be written.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ToolFailed(
            f"the tool '{tool.name}' returned something to wait for; make its function async"
        )
    if isinstance(value, Iterator | AsyncIterator):
        raise ToolFailed(
            f"the tool '{tool.name}' returned an iterator, which may have no end; let the function "
            "itself yield texts, or return a list"
        )
    tool.check(value)
    reward = 0.0
    if isinstance(value, Rewarded):
        value, reward = value.value, value.reward
    if isinstance(value, str):
        return Answer(cut(value, most), reward)
    try:
        plain = to_jsonable_python(value)
        return Answer(cut(json.dumps(plain, ensure_ascii=False), most), reward)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise ToolFailed(
            f"the tool '{tool.name}' returned a {type(value).__name__} that cannot be written as "
            f"JSON ({error}); return a text, numbers, or lists and dicts of them"
        ) from error


def answer_of_parts(tool: Tool, parts: Iterator[Any], most: int) -> Answer:
    """Return the texts that a tool yields; one that does not end is stopped at the limit."""
    kept = _Kept(tool, most)
    try:
        for part in parts:
            if kept.full(part):
                break
    finally:
        parts.close()  # type: ignore[attr-defined]
    return Answer(kept.text)


async def answer_of_async_parts(tool: Tool, parts: AsyncIterator[Any], most: int) -> Answer:
    """Return the texts that an `async` tool yields; see `answer_of_parts`."""
    kept = _Kept(tool, most)
    try:
        async for part in parts:
            if kept.full(part):
                break
    finally:
        await parts.aclose()  # type: ignore[attr-defined]
    return Answer(kept.text)


class _Kept:
    """The beginning of an answer that comes in parts."""

    def __init__(self, tool: Tool, most: int) -> None:
        self.text = ""
        self._tool, self._most = tool, most

    def full(self, part: Any) -> bool:
        """Add a part; return whether no more are wanted."""
        if not isinstance(part, str):
            raise ToolFailed(
                f"the tool '{self._tool.name}' yielded a {type(part).__name__}; it may yield texts"
            )
        self.text += part
        if len(self.text) <= self._most:
            return False
        self.text = f"{self.text[: self._most]}... (stopped here)"
        return True
