"""A worker of tools that hangs is ended as the process that it is now."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.agents.tools.toolbox import ToolFailed
from rlinf.workers.tools import remote_tools
from rlinf.workers.tools.remote_tools import RemoteTools


class HungGroup:
    """One worker that answers nothing; another caller had it started anew before."""

    world_size, worker_group_name = 1, "tools"

    def __init__(self) -> None:
        never = SimpleNamespace(remote=lambda: None)
        self.infos = [SimpleNamespace(life="old")]
        self.actors = [SimpleNamespace(ping=never, rlinf_info=never)]
        self.launched = self.backend = self
        self.ended: list[str] = []

    def execute_on(self, rank: int) -> Any:
        return SimpleNamespace(call_tool=lambda *_: SimpleNamespace(async_wait=self.result))

    def name_of(self, rank: int) -> str:
        return "tools:0"

    async def result(self, asked: Any = None) -> Any:
        await asyncio.Event().wait()


async def test_the_process_that_hangs_is_ended_and_not_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = HungGroup()
    monkeypatch.setattr(remote_tools, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(
        remote_tools, "end_process", lambda group, rank: group.ended.append(group.infos[rank].life)
    )
    monkeypatch.setattr(
        remote_tools, "registered_info", lambda group, rank, limit: SimpleNamespace(life="new")
    )
    tools = RemoteTools(group, frozenset(), come_back=1000.0)
    with pytest.raises(ToolFailed, match="tools:0 has not answered"):
        await tools.ask(0, 0.01, "call_tool")
    assert not group.ended, "the call may have been one to the process before"
    with pytest.raises(ToolFailed, match="tools:0 has not answered"):
        await tools.ask(0, 0.01, "call_tool")
    assert group.ended == ["new"]
    for task in tools._returning.values():
        task.cancel()
