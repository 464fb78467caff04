"""Tools are typed functions: their schema, what they are called with, and what they answer."""

import asyncio
import threading
from typing import Literal

import pytest

from rlinf.agents.tools.tool import Tool, ToolError
from rlinf.agents.tools.toolbox import MalformedCall, Toolbox, ToolCall, ToolFailed


def convert(amount: float, unit: Literal["m", "km"] = "m", tags: list[str] | None = None) -> str:
    """Convert a length.

    Sizes are in metres.

    Args:
        amount: How much,
            in any unit.
        unit (str): Of the amount.

    Returns:
        Text.
    """
    return f"{amount} {unit} {tags}"


def test_the_schema_comes_from_the_signature():
    assert Tool(convert).schema == {
        "type": "function",
        "function": {
            "name": "convert",
            "description": "Convert a length. Sizes are in metres.",
            "parameters": {
                "type": "object",
                "properties": {
                    "amount": {"type": "number", "description": "How much, in any unit."},
                    "unit": {
                        "type": "string",
                        "enum": ["m", "km"],
                        "default": "m",
                        "description": "Of the amount.",
                    },
                    "tags": {
                        "anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["amount"],
            },
        },
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "convert: the argument 'amount' is missing"),
        ({"amount": 1, "color": 2}, "there is no argument 'color', only amount, unit, tags"),
        ({"amount": "much"}, "'amount': input should be a valid number"),
        ({"amount": 1, "unit": "mile"}, "'unit': input should be 'm' or 'km'"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(ToolError, match=said):
        Tool(convert).read(arguments)


def no_type(x):
    """Do."""


def starred(*x: int):
    """Do."""


def silent(x: int):
    pass


@pytest.mark.parametrize(
    ("function", "said"),
    [(no_type, "'x' .* has no type"), (starred, "name its parameters"), (silent, "no docstring")],
)
def test_functions_that_cannot_be_tools_are_refused(function, said):
    with pytest.raises(ValueError, match=said):
        Tool(function)


def test_names_are_those_that_formats_can_hold():
    with pytest.raises(ValueError, match="names are letters"):
        Tool(convert, name="<convert>")


# -- calling ---------------------------------------------------------------------------------------


def broken(x: int) -> int:
    """Divide."""
    return 1 // x


async def later(x: int) -> dict[str, int]:
    """Answer later."""
    await asyncio.sleep(0)
    return {"twice": 2 * x}


def flood(x: int) -> str:
    """Say much."""
    return "y" * x


def ask(box, *calls):
    async def all_of_them():
        return await asyncio.gather(*map(box.call, calls))

    return asyncio.run(all_of_them())


def test_what_goes_wrong_is_an_answer():
    box = Toolbox([Tool(broken), Tool(later), Tool(flood), Tool(convert)], most_characters=10)
    found = ask(
        box,
        ToolCall("broken", {"x": 1}),
        ToolCall("broken", {"x": 0}),
        ToolCall("nothing", {}),
        ToolCall("later", {"x": 3}),
        ToolCall("flood", {"x": 12}),
        MalformedCall("no JSON"),
        ToolCall("broken", {}),
    )
    assert [(result.text[:24], result.error) for result in found] == [
        ("1", False),
        ("ZeroDivisi... (43 charac", True),
        ("there is no tool 'nothin", True),
        ('{"twice": ... (2 charact', False),
        ("yyyyyyyyyy... (2 charact", False),
        ("no JSON", True),
        ("broken: th... (25 charac", True),
    ]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_tool_that_hangs_fails_its_episode_alone(kind):
    stuck, freed = threading.Event(), threading.Event()

    def hang(x: int) -> str:
        """Hang."""
        stuck.set()
        freed.wait(60)
        return "late"

    async def hang_async(x: int) -> str:
        """Hang."""
        stuck.set()
        await asyncio.Event().wait()
        return "never"

    tool = Tool(hang) if kind == "thread" else Tool(hang_async, name="hang")
    box = Toolbox([tool, Tool(flood)], timeout=0.05)

    async def both():
        failed = asyncio.ensure_future(box.call(ToolCall("hang", {"x": 1})))
        other = await box.call(ToolCall("flood", {"x": 2}))
        with pytest.raises(ToolFailed, match=r"'hang' did not answer within 0.05 s"):
            await failed
        return other.text

    assert asyncio.run(both()) == "yy"
    assert stuck.is_set()
    freed.set()


def test_so_many_calls_run_at_a_time():
    running, most = 0, 0

    async def count(x: int) -> str:
        """Count."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return ""

    ask(Toolbox([Tool(count)], concurrency=3), *[ToolCall("count", {"x": i}) for i in range(20)])
    assert most == 3


def test_tools_have_names_of_their_own():
    with pytest.raises(ValueError, match="name each once"):
        Toolbox([Tool(flood), Tool(broken, name="flood")])
    with pytest.raises(ValueError, match="did you mean 'calculator'"):
        Toolbox(["calculater"])
