"""MCP servers as tools, with real ones: over pipes and over HTTP, that die, hang and say no."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mcp", reason="needs the extra agents: pip install -e '.[agents]'")

from rlinf.agents.tools.build import make_toolbox  # noqa: E402
from rlinf.agents.tools.toolbox import ToolCall, ToolFailed  # noqa: E402

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
PAGES = str(Path(__file__).with_name("mcp_pages.py"))
SECONDS = 60


@pytest.fixture
def boxes():
    """Makes boxes with the tools of a server, and closes them."""
    made = []

    def make(tool_settings=None, timeout=30.0, **server):
        if "url" not in server:
            path = ":".join(p for p in sys.path if p)
            server = {
                "command": sys.executable,
                "args": [SCRIPT],
                "env": {"SHOP": "open", "PYTHONPATH": path},
                **server,
            }
        cfg = SimpleNamespace(
            tools=["calculator"],
            tool_timeout=timeout,
            tool_concurrency=8,
            max_tool_characters=1000,
            tool_settings=tool_settings or {},
            mcp_servers={"shop": server},
        )
        made.append(make_toolbox(cfg))
        return made[-1]

    yield make
    for box in made:
        box.close()


async def ask(box, name, **arguments):
    return await asyncio.wait_for(box.call(ToolCall(name, arguments)), SECONDS)


async def test_tools_schema_and_errors_are_those_of_the_server(boxes):
    box = boxes(tools=["price", "process", "odd.name"], prefix="shop_")
    assert box.names == ("calculator", "shop_price", "shop_process", "shop_odd_name")
    schema = next(
        each["function"] for each in box.schemas if each["function"]["name"] == "shop_price"
    )
    assert schema["description"] == "Look up what a product costs."
    assert schema["parameters"]["required"] == ["product"]
    assert schema["parameters"]["properties"]["amount"]["type"] == "integer"
    assert (await ask(box, "shop_price", product="apple", amount=3)).text == "1.5"
    assert (await ask(box, "shop_process")).text.endswith(" open")
    assert (await ask(box, "shop_odd_name")).text == "odd"
    # What the model does wrong is an answer.
    for arguments, said in (
        ({"product": "plum"}, "there is no plum"),
        ({}, "shop_price: 'product' is a required property"),
        ({"product": "apple", "amount": "many"}, "'amount': 'many' is not of type 'integer'"),
        ({"produce": "apple"}, "there is no argument 'produce', only product, amount"),
    ):
        found = await ask(box, "shop_price", **arguments)
        assert found.error and said in found.text, found.text


async def test_all_pages_of_a_list_of_tools_are_read(boxes):
    box = boxes(args=[PAGES, "5"])
    assert box.names == ("calculator", *(f"tool_{number}" for number in range(5)))
    assert (await ask(box, "tool_4")).text == "4"


async def test_a_list_of_tools_without_an_end_is_refused(boxes):
    with pytest.raises(ValueError, match="does not end: page '0' comes again"):
        boxes(args=[PAGES, "endless"])


async def test_a_server_that_dies_is_started_again(boxes, tmp_path):
    box = boxes()
    first = (await ask(box, "process")).text
    with pytest.raises(ToolFailed, match="the MCP server 'shop' failed"):
        await ask(box, "die")
    second = (await ask(box, "process")).text
    assert first != second
    # A call that may be made again is.
    session = box.session()
    found = await asyncio.wait_for(
        session.call(ToolCall("die_once", {"mark": str(tmp_path / "mark")})), SECONDS
    )
    assert found.text not in (first.split()[0], second.split()[0])
    assert session.usage["die_once"].retries >= 1


async def test_a_server_that_dies_too_often_is_given_up(boxes):
    box = boxes(max_restarts=0, start_timeout=30.0)
    with pytest.raises(ToolFailed):
        await ask(box, "die")
    with pytest.raises(ToolFailed, match="failed more than 0 times"):
        await ask(box, "process")


async def test_a_call_that_hangs_has_a_deadline_and_others_go_on(boxes, tmp_path):
    box = boxes(tool_settings={"hang": {"timeout": 0.5}})
    mark = tmp_path / "mark"
    with pytest.raises(ToolFailed, match=r"'hang' did not answer within 0\.5 s"):
        await ask(box, "hang", mark=str(mark))
    assert (await ask(box, "calculator", expression="1+1")).text == "2"


def test_what_cannot_be_used_is_said_at_the_beginning(boxes):
    with pytest.raises(ValueError, match=r"no tool prices, only price, .*mcp_servers\.shop\.tools"):
        boxes(tools=["prices"])
    with pytest.raises(ValueError, match="the MCP server 'shop' cannot be used: .*nowhere"):
        boxes(command="/nowhere/server", args=[])
    with pytest.raises(ValueError, match="the MCP server 'shop' cannot be used|did not answer"):
        boxes(command=sys.executable, args=["-c", "print('no server')"], start_timeout=20.0)


async def test_a_server_over_http(boxes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, SCRIPT, str(port)], stderr=subprocess.DEVNULL)
    try:
        while True:
            assert server.poll() is None
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            await asyncio.sleep(0.05)
        box = boxes(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Run": "1"})
        assert (await ask(box, "price", product="pear")).text == "0.75"
        assert (await ask(box, "price", product="plum")).error
    finally:
        server.kill()
        server.wait()
    with pytest.raises(ToolFailed):
        await ask(box, "process")
