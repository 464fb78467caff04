"""Tools in workers of their own: what ends a worker costs the calls that were there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.agents.tools.tool import Tool, ToolError
from rlinf.agents.tools.toolbox import Toolbox, ToolCall, ToolFailed
from rlinf.scheduler import FlexiblePlacementStrategy
from rlinf.workers.tools import tool_worker
from rlinf.workers.tools.remote_tools import RemoteTools, ToolWorkersLost
from rlinf.workers.tools.tool_worker import ToolWorker

SECONDS = 60


def hold(mark: str) -> int:
    """Wait until a file is there; the number of the process is in another."""
    _write(mark, os.getpid())
    while not Path(f"{mark}.go").exists():
        threading.Event().wait(0.01)
    return os.getpid()


def crash(mark: str) -> int:
    """End the process, the first time."""
    if not Path(mark).exists():
        _write(mark, os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def price(product: str) -> float:
    """Look up a price."""
    if product != "apple":
        raise ToolError(f"there is no {product}")
    return 0.5


class Notes:
    """Write something down."""

    def __init__(self, mark: str = "") -> None:
        self.said, self._mark = [], mark

    def __call__(self, text: str) -> str:
        self.said.append(text)
        return f"{os.getpid()} {' '.join(self.said)}"

    def close(self) -> None:
        _write(f"{self._mark}.{self.said[0]}", len(self.said))


def _write(path: str, number: int) -> None:
    Path(f"{path}.new").write_text(str(number))
    os.replace(f"{path}.new", path)


def tools() -> list[Tool]:
    return [
        Tool(hold, concurrency=1, timeout=0.2),
        Tool(hold, name="again", idempotent=True),
        Tool(crash, idempotent=True),
        Tool(crash, name="crash_once"),
        Tool(price),
        Tool(Notes),
    ]


class Tools(ToolWorker):
    """Has the tools of this test."""

    def __init__(self, cfg: Any) -> None:
        tool_worker.documents_of_run = lambda _: None
        tool_worker.make_toolbox = lambda _, documents: Toolbox(
            tools(), settings={"notes": {"options": {"mark": cfg.mark}}}
        )
        super().__init__(cfg)


class Run:
    """A group of workers, and a box that calls tools there."""

    def __init__(self, cluster: Any, folder: Path, ranks: int, restarts: int = 3) -> None:
        cfg = SimpleNamespace(
            agentloop=None, tools=SimpleNamespace(max_restarts=restarts), mark=str(folder / "notes")
        )
        places = FlexiblePlacementStrategy([[rank] for rank in range(ranks)])
        self.group = Tools.create_group(cfg).launch(cluster, places, name="tools")
        self.folder = folder

    def box(self) -> Toolbox:
        return Toolbox(tools(), remote=RemoteTools(self.group, frozenset({"notes"}), SECONDS))

    def pids(self) -> list[int]:
        return [info.pid for info in self.group.worker_info_list]


async def until(path: Path) -> int:
    while not path.exists():
        await asyncio.sleep(0.01)
    return int(path.read_text())


async def within(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, SECONDS)


async def test_calls_go_to_the_workers_and_come_back(cluster, tmp_path):
    run = Run(cluster, tmp_path, ranks=2)
    box = run.box()
    found = await within(
        asyncio.gather(*(box.call(ToolCall("price", {"product": p})) for p in ("apple", "pear")))
    )
    assert [(each.text, each.error) for each in found] == [
        ("0.5", False),
        ("there is no pear", True),
    ]
    assert (await within(box.call(ToolCall("price", {})))).error

    # A state is that of an episode, at one worker, and is closed there.
    one, two = box.session(), box.session()
    said = [
        (await within(s.call(ToolCall("notes", {"text": t})))).text
        for s, t in ((one, "a"), (two, "b"), (one, "c"))
    ]
    assert [text.split()[1:] for text in said] == [["a"], ["b"], ["a", "c"]]
    assert said[0].split()[0] == said[2].split()[0] != said[1].split()[0]
    await within(one.close())
    assert await within(until(tmp_path / "notes.a")) == 2
    assert not (tmp_path / "notes.b").exists()

    # Its worker dies: the state is lost, and the episode with it; others go on.
    os.kill(int(said[1].split()[0]), signal.SIGKILL)
    with pytest.raises(ToolFailed, match="died|was started anew"):
        await within(two.call(ToolCall("notes", {"text": "d"})))
    with pytest.raises(ToolFailed, match="what 'notes' had open is lost"):
        while True:
            try:
                await within(two.call(ToolCall("notes", {"text": "d"})))
            except ToolFailed as error:
                if "died" not in str(error):
                    raise
    fresh = await within(box.call(ToolCall("notes", {"text": "e"})))
    assert fresh.text.split()[1:] == ["e"]


async def test_a_worker_that_dies_is_started_anew(cluster, tmp_path):
    run = Run(cluster, tmp_path, ranks=1)
    box = run.box()
    mark = tmp_path / "mark"
    calling = asyncio.ensure_future(box.call(ToolCall("again", {"mark": str(mark)})))
    victim = await within(until(mark))
    assert victim == run.pids()[0]
    mark.unlink()
    os.kill(victim, signal.SIGKILL)
    # The call is made again in the new process.
    other = await within(until(mark))
    (tmp_path / "mark.go").touch()
    assert int((await within(calling)).text) == other != victim

    # A tool that ends its process costs the call, or an attempt at it.
    session = box.session()
    with pytest.raises(ToolFailed, match="the worker of the tool died.*SIGKILL"):
        await within(session.call(ToolCall("crash_once", {"mark": str(tmp_path / "first")})))
    found = await within(session.call(ToolCall("crash", {"mark": str(tmp_path / "second")})))
    assert int(found.text) != int((tmp_path / "second").read_text())
    assert session.usage["crash"].retries == 1 and session.usage["crash_once"].failures == 1

    # Three restarts are over: the next death is for good, and the run cannot go on.
    with pytest.raises(ToolWorkersLost, match=r"all 1 workers .* Raise tools\.max_restarts"):
        for number in range(9):
            crashing = ToolCall("crash_once", {"mark": str(tmp_path / f"more{number}")})
            with contextlib.suppress(ToolFailed):
                await within(session.call(crashing))


async def test_a_worker_whose_places_all_hang_is_started_anew(cluster, tmp_path):
    run = Run(cluster, tmp_path, ranks=1)
    box = run.box()
    mark = tmp_path / "mark"
    with pytest.raises(ToolFailed, match=r"'hold' did not answer within 0\.2 s"):
        await within(box.call(ToolCall("hold", {"mark": str(mark)})))
    first = int(mark.read_text())

    async def another() -> int:
        """Wait for a process that is not the one that hangs."""
        while True:
            found = int((await box.call(ToolCall("crash", {"mark": str(mark)}))).text)
            if found != first:
                return found

    await within(another())
    Path(f"{mark}.go").touch()
    assert int((await within(box.call(ToolCall("hold", {"mark": str(mark)})))).text) != first
