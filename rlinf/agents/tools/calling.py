"""Calls one function of a tool: in a thread or in the event loop, with a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from rlinf.agents.tools.answers import Answer, answer_from, answer_of_async_parts, answer_of_parts
from rlinf.agents.tools.slots import Slots
from rlinf.agents.tools.tool import Tool, ToolFailed

_SMALL = (str, int, float, bool, type(None))


def answer_of(tool: Tool, target: Any, arguments: dict[str, Any], most: int) -> Any:
    """Begin a call; return something to wait for, which gives the `Answer`.

    Args:
        tool: what is called.
        target: what `Tool.open` returned.
        arguments: as the function takes them.
        most: characters of the answer.
    """
    if tool.yields_async:
        return answer_of_async_parts(tool, target(**arguments), most)
    if tool.is_async:
        return _of_async(tool, target, arguments, most)
    if tool.yields:
        return in_thread(lambda: answer_of_parts(tool, target(**arguments), most))
    return in_thread(lambda: answer_from(tool, target(**arguments), most))


async def _of_async(tool: Tool, target: Any, arguments: dict[str, Any], most: int) -> Answer:
    value = await target(**arguments)
    if isinstance(value, _SMALL):
        return answer_from(tool, value, most)
    # To check and to write what is large takes its time, which is not that of other episodes.
    return await in_thread(lambda: answer_from(tool, value, most))


async def within(awaitable: Any, slots: Slots, seconds: float, late: str) -> Any:
    """Wait for a call that holds a place; the place is free when the call has ended.

    Args:
        awaitable: the call.
        slots: where it holds a place.
        seconds: deadline.
        late: what to say when it passes.

    Raises:
        ToolFailed: it has passed.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        _leave(task, slots)
        raise
    if done:
        slots.free()
        if task.cancelled():
            raise ToolFailed("the tool cancelled its own call")
        return task.result()
    _leave(task, slots)
    raise ToolFailed(late)


def _leave(task: asyncio.Future[Any], slots: Slots) -> None:
    """Let a call that was given up keep its place until it ends."""
    slots.give_up()
    if isinstance(task, asyncio.Task):
        # A thread cannot be ended.
        task.cancel()

    def ended(task: asyncio.Future[Any]) -> None:
        slots.ended()
        if not task.cancelled():
            # Nobody asks what became of it any more.
            task.exception()

    task.add_done_callback(ended)


def in_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Call a function in a thread of its own; the future is done when the thread is.

    Args:
        function: without arguments.
    """
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
            result = function()
        except StopIteration as raised:
            # A future cannot hold it.
            error = RuntimeError(f"StopIteration: {raised}")
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = ToolFailed(f"the tool ended its thread by {type(raised).__name__}")
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop is closed: a run that has ended does not wait for the answer.
            pass

    threading.Thread(target=run, daemon=True, name="tool").start()
    return answer
