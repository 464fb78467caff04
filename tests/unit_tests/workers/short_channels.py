"""Channels of this process with a short deadline, and a pause that is longer than it."""

from __future__ import annotations

import asyncio

import pytest

from rlinf.scheduler import Channel, WaitTimeout
from rlinf.scheduler.channel.local import LocalClient
from rlinf.scheduler.channel.spec import ChannelSpec

_SHORT = 0.05


def short_channel(name: str) -> Channel:
    """Make a channel as `cluster.timeouts.channel: 0.05` does."""
    spec = ChannelSpec(name)
    return Channel(spec, LocalClient(spec, _SHORT))


async def pause() -> None:
    """Let two deadlines pass; whoever waited before has waited for longer than one."""
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(WaitTimeout):
            await short_channel("of nobody").get(async_op=True)
