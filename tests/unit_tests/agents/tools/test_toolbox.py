"""Tools that do wrong cost their episode and nothing else: they hang, crash, lie and flood."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from rlinf.agents.tools.tool import Tool, ToolError
from rlinf.agents.tools.toolbox import Toolbox, ToolCall, ToolFailed

SECONDS = 30


async def within(awaitable):
    return await asyncio.wait_for(awaitable, SECONDS)


async def until(condition):
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


def call(name, x=1):
    return ToolCall(name, {"x": x})


# -- hanging ---------------------------------------------------------------------------------------


async def test_a_tool_that_hangs_has_so_many_threads_and_no_more():
    begun, freed = [], threading.Event()

    def hang(x: int) -> str:
        """Hang."""
        begun.append(x)
        freed.wait(SECONDS)
        return "late"

    box = Toolbox([Tool(hang, timeout=0.02, concurrency=2)])
    for x in range(2):
        with pytest.raises(ToolFailed, match=r"'hang' did not answer within 0.02 s"):
            await within(box.call(call("hang", x)))
    assert box.stuck
    with pytest.raises(ToolFailed, match="all 2 places of the tool 'hang' are held by calls"):
        await within(box.call(call("hang", 2)))
    assert begun == [0, 1]
    freed.set()
    # Its places are free again when its threads have ended.
    while box.stuck:
        await asyncio.sleep(0.001)
    assert (await within(box.call(call("hang", 3)))).text == "late"


async def test_calls_in_line_fail_when_the_last_place_hangs():
    freed = threading.Event()

    def hang(x: int) -> str:
        """Hang."""
        freed.wait(SECONDS)
        return "late"

    box = Toolbox([Tool(hang, timeout=0.05, concurrency=1)])
    calls = [asyncio.ensure_future(box.call(call("hang", x))) for x in range(3)]
    found = await within(asyncio.gather(*calls, return_exceptions=True))
    assert ["did not answer" in str(found[0]), *("all 1 places" in str(e) for e in found[1:])] == [
        True
    ] * 3
    freed.set()


async def test_an_async_tool_that_will_not_be_cancelled_is_left_behind():
    freed = asyncio.Event()

    async def stubborn(x: int) -> str:
        """Do not listen."""
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    box = Toolbox([Tool(stubborn, timeout=0.02, concurrency=1)])
    with pytest.raises(ToolFailed, match="did not answer"):
        await within(box.call(call("stubborn")))
    assert box.stuck
    freed.set()
    await until(lambda: not box.stuck)


async def test_an_episode_that_is_cancelled_in_line_gives_its_place_to_the_next():
    first, freed = asyncio.Event(), asyncio.Event()

    async def slow(x: int) -> int:
        """Wait."""
        first.set()
        await freed.wait()
        return x

    box = Toolbox([Tool(slow, concurrency=1)])
    calls = [asyncio.ensure_future(box.call(call("slow", x))) for x in range(3)]
    await within(first.wait())
    calls[1].cancel()
    freed.set()
    found = await within(asyncio.gather(*calls, return_exceptions=True))
    assert found[0].text == "0" and found[2].text == "2"
    assert isinstance(found[1], asyncio.CancelledError)


# -- crashing --------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


def leave(x: int) -> str:
    """End the thread."""
    raise SystemExit(3)


def stop(x: int) -> str:
    """Stop."""
    raise StopIteration


def mute(x: int) -> str:
    """Raise what cannot say why."""
    raise Mute


async def test_tools_that_crash():
    box = Toolbox([Tool(leave), Tool(stop), Tool(mute)])
    with pytest.raises(ToolFailed, match="by SystemExit"):
        await within(box.call(call("leave")))
    found = [await within(box.call(call(name))) for name in ("stop", "mute")]
    assert [(result.text, result.error) for result in found] == [
        ("RuntimeError: StopIteration: ", True),
        ("Mute", True),
    ]


# -- lying -----------------------------------------------------------------------------------------


def wrong_type(x: int) -> float:
    """Say what is not so."""
    return "three"


def wrong_inside(x: int) -> dict[str, list[int]]:
    """Say what is not so."""
    return {"a": [1, "2"]}


def no_json(x: int):
    """Return what cannot be written."""
    return threading.Lock()


def circle(x: int) -> list:
    """Return what has no end."""
    found = []
    found.append(found)
    return found


async def later() -> str:
    return "later"


def awaitable(x: int):
    """Return something to wait for."""
    return later()


def endless(x: int):
    """Return an iterator."""
    return iter(int, 1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (wrong_type, "did not return what its signature says: .*valid number, not str"),
        (wrong_inside, r"at a\.1: .*valid integer, not str"),
        (no_json, "returned a lock that cannot be written as JSON"),
        (circle, "returned a list that cannot be written as JSON"),
        (awaitable, "make its function async"),
        (endless, "returned an iterator, which may have no end"),
    ],
)
@pytest.mark.parametrize("kind", ["thread", "inline", "async"])
async def test_what_a_tool_does_not_say_fails_the_episode(function, said, kind):
    made = Tool(function, inline=kind == "inline")
    if kind == "async":

        async def wrapped(x):
            return function(x)

        wrapped.__annotations__ = function.__annotations__
        wrapped.__doc__ = "Do."
        made = Tool(wrapped, name=function.__name__)
    with pytest.raises(ToolFailed, match=said):
        await within(Toolbox([made]).call(call(function.__name__)))


# -- flooding --------------------------------------------------------------------------------------


class Flood:
    """Texts without end, and whether somebody has closed them."""

    def __init__(self):
        self.given, self.closed = 0, False

    def parts(self, x: int) -> Iterator[str]:
        """Flood."""
        try:
            while True:
                self.given += 1
                yield "word "
        finally:
            self.closed = True

    async def async_parts(self, x: int) -> AsyncIterator[str]:
        """Flood."""
        try:
            while True:
                self.given += 1
                yield "word "
        finally:
            self.closed = True


@pytest.mark.parametrize("kind", ["parts", "async_parts"])
async def test_texts_without_end_are_stopped(kind):
    flood = Flood()
    box = Toolbox([Tool(getattr(flood, kind), name="flood")], most_characters=12)
    found = await within(box.call(call("flood")))
    assert found.text == "word word wo... (stopped here)" and not found.error
    assert flood.closed and flood.given == 3


async def test_parts_that_are_no_texts_fail():
    def numbers(x: int) -> Iterator[int]:
        """Count."""
        yield 1

    with pytest.raises(ToolFailed, match="yielded a int; it may yield texts"):
        await within(Toolbox([Tool(numbers)]).call(call("numbers")))


# -- attempts --------------------------------------------------------------------------------------


class Shaky:
    """Fails so many times."""

    def __init__(self, failures, error=None):
        self.left, self.calls = failures, 0
        self.error = error or ConnectionError("gone")

    def shaky(self, x: int) -> str:
        """Answer at last."""
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "here"


@pytest.mark.parametrize(
    ("idempotent", "failures", "settings", "calls"),
    [
        (True, 2, {}, 3),
        (True, 3, {}, None),
        (False, 1, {}, None),
        (False, 1, {"idempotent": True, "retries": 1}, 2),
        (True, 1, {"idempotent": False}, None),
        (True, 1, {"retries": 0}, None),
    ],
)
async def test_only_idempotent_calls_are_made_again(idempotent, failures, settings, calls):
    shaky = Shaky(failures)
    box = Toolbox([Tool(shaky.shaky, idempotent=idempotent)], settings={"shaky": settings})
    session = box.session()
    if calls is None:
        with pytest.raises(ToolFailed, match="'shaky' failed: ConnectionError: gone"):
            await within(session.call(call("shaky")))
        assert session.usage["shaky"].failures == 1
    else:
        assert (await within(session.call(call("shaky")))).text == "here"
        assert shaky.calls == calls and session.usage["shaky"].retries == calls - 1
    assert session.usage["shaky"].calls == 1 and session.usage["shaky"].seconds > 0


async def test_what_the_model_did_wrong_is_not_tried_again():
    shaky = Shaky(5, ToolError("there is no x"))
    session = Toolbox([Tool(shaky.shaky, idempotent=True)]).session()
    found = await within(session.call(call("shaky")))
    assert found.error and shaky.calls == 1 and session.usage["shaky"].errors == 1


async def test_settings_of_a_run_go_before_those_of_the_tool():
    def long(x: int) -> str:
        """Say much."""
        return "y" * 9

    box = Toolbox([Tool(long)], most_characters=8, settings={"LONG": {"max_characters": 3}})
    assert (await within(box.call(call("long")))).text == "yyy... (6 characters more)"


# -- state -----------------------------------------------------------------------------------------


class Counter:
    """Count from a number."""

    made: list = []

    def __init__(self, start: int = 0) -> None:
        self.total, self.closed, self.inside = start, False, 0
        Counter.made.append(self)

    def __call__(self, x: int) -> int:
        self.inside += 1
        assert self.inside == 1
        self.total += x
        self.inside -= 1
        return self.total

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def forget():
    Counter.made = []


async def test_a_state_is_that_of_an_episode():
    box = Toolbox([Tool(Counter)], settings={"counter": {"options": {"start": 10}}})
    assert box.schemas[0]["function"]["description"] == "Count from a number."
    one, two = box.session(), box.session()
    assert not Counter.made
    found = await within(asyncio.gather(*(one.call(call("counter", x)) for x in range(5))))
    assert sorted(int(result.text) for result in found) == [10, 11, 13, 16, 20]
    assert (await within(two.call(call("counter", 1)))).text == "11"
    await within(one.close())
    assert [each.closed for each in Counter.made] == [True, False]
    await within(two.close())
    assert all(each.closed for each in Counter.made) and len(Counter.made) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"begin": 1}, "there is no option 'begin', only start"),
        ({"start": "x"}, "'start': input should be a valid integer"),
    ],
)
def test_options_are_those_of_the_class(options, said):
    with pytest.raises(ValueError, match=said):
        Toolbox([Tool(Counter)], settings={"counter": {"options": options}})


def test_functions_have_no_options():
    with pytest.raises(ValueError, match="takes no options, not a: it is a function"):
        Toolbox([Tool(leave)], settings={"leave": {"options": {"a": 1}}})


class Fragile:
    """Do not even open."""

    def __init__(self) -> None:
        raise OSError("no room")

    def __call__(self, x: int) -> str:
        return ""


class Unclosable:
    """Do not close."""

    closing, freed = threading.Event(), threading.Event()

    def __call__(self, x: int) -> str:
        return "yes"

    def close(self) -> None:
        self.closing.set()
        self.freed.wait(SECONDS)


async def test_what_cannot_be_opened_or_closed():
    box = Toolbox([Tool(Fragile), Tool(Unclosable, timeout=0.05)])
    session = box.session()
    with pytest.raises(ToolFailed, match="'fragile' cannot be opened: OSError: no room"):
        await within(session.call(call("fragile")))
    assert (await within(session.call(call("unclosable")))).text == "yes"
    await within(session.close())
    assert Unclosable.closing.is_set()
    Unclosable.freed.set()


class Slow:
    """Take longer to open than a call may."""

    opening, closed = threading.Event(), threading.Event()

    def __init__(self) -> None:
        self.opening.wait(SECONDS)

    def __call__(self, x: int) -> str:
        return "yes"

    def close(self) -> None:
        self.closed.set()


async def test_what_opens_too_late_is_closed():
    session = Toolbox([Tool(Slow, timeout=0.05)]).session()
    with pytest.raises(ToolFailed, match="did not answer within"):
        await within(session.call(call("slow")))
    await within(session.close())
    Slow.opening.set()
    await within(asyncio.to_thread(Slow.closed.wait, SECONDS))
    assert Slow.closed.is_set()
