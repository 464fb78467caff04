"""Who serves waits for as long as the channel lives, and is told at once when it ends."""

from __future__ import annotations

import asyncio

import pytest

from rlinf.scheduler import UNTIL_CLOSED, Channel, ChannelClosed, ItemLost, WaitTimeout
from rlinf.scheduler.channel.client import INLINE_BYTES
from rlinf.scheduler.channel.errors import KeeperLost
from rlinf.scheduler.channel.local import LocalClient
from rlinf.scheduler.channel.spec import ChannelSpec
from tests.unit_tests.scheduler.small_run import in_thread

SHORT = 0.05


def idle(channel: Channel) -> None:
    """Let two deadlines pass."""
    for _ in range(2):
        with pytest.raises(WaitTimeout):
            channel.get(key="nobody")


@pytest.fixture
def served(small_run):
    """A keeper, and both sides of a channel with a short deadline."""
    keeper = small_run.keeper()
    members = small_run.join("client:0"), small_run.join("server:0")
    for member in members:
        member.endpoint.run.timeouts["channel"] = SHORT
    return keeper, *members, *(small_run.channel(member, "c") for member in members)


def test_a_wait_outlasts_the_deadline_and_ends_with_the_channel(served):
    _, _, _, client, server = served
    for item in range(2):
        waiting = in_thread(lambda: server.get(timeout=UNTIL_CLOSED))
        idle(client)
        client.put(item)
        assert waiting.wait() == item
    waiting = in_thread(lambda: server.get(timeout=UNTIL_CLOSED))
    idle(client)
    client.close()
    with pytest.raises(ChannelClosed):
        waiting.wait()


@pytest.mark.parametrize("coroutine", [False, True])
def test_it_ends_with_the_keeper_which_is_named(small_run, served, coroutine):
    keeper, _, _, client, server = served

    async def serve():
        return await server.get(async_op=True, timeout=UNTIL_CLOSED)

    waiting = in_thread(
        lambda: asyncio.run(serve()) if coroutine else server.get(timeout=UNTIL_CLOSED)
    )
    idle(client)
    small_run.kill(keeper)
    with pytest.raises(KeeperLost, match="channel 'c' is gone: its keeper ended .*keeper:0"):
        waiting.wait()


def test_it_ends_with_a_producer_that_dies_with_its_item(small_run, served):
    _, producer, _, client, server = served
    client.put(b"x" * 2 * INLINE_BYTES)
    assert server.qsize() == 1
    small_run.kill(producer)
    with pytest.raises(ItemLost, match="client:0"):
        in_thread(lambda: server.get(timeout=UNTIL_CLOSED)).wait()


def test_a_local_channel_keeps_the_same_promise():
    channel = Channel(ChannelSpec("local"), LocalClient(ChannelSpec("local"), SHORT))
    waiting = in_thread(lambda: channel.get(timeout=UNTIL_CLOSED))
    idle(channel)
    channel.close()
    with pytest.raises(ChannelClosed):
        waiting.wait()
