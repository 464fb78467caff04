"""Which exceptions may follow from the end of another process, and which do not."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context

import pytest

from rlinf.scheduler.channel.errors import ChannelClosed, ItemLost, KeeperLost
from rlinf.scheduler.errors import ConnectionBroken, WaitTimeout, WorkerDied
from rlinf.scheduler.failure.lost_peer import may_follow_from_lost_peer

LOST = [
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
    ConnectionError("gone"),
    WorkerDied("env:0", cause="the peer closed the connection"),
    ConnectionBroken("env:0", peer="rollout:0", reason="reading failed"),
    ItemLost("its holder has died"),
    KeeperLost("its keeper has died"),
]
OTHERS = [
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionBroken("env:0", peer="rollout:0", reason="reset", confirmed=True),
    ChannelClosed("closed"),
    ValueError("Connection reset by peer"),
    RuntimeError("a mistake"),
    MemoryError("CUDA out of memory"),
    WaitTimeout("actor.train()", seconds=4.0),
]


@pytest.mark.parametrize("error", [*LOST, *OTHERS], ids=repr)
def test_by_type(error):
    assert may_follow_from_lost_peer(error) is (error in LOST)


def test_what_an_exception_was_raised_from_counts():
    wrapped = RuntimeError("step 3 failed")
    wrapped.__cause__ = LOST[0]
    assert may_follow_from_lost_peer(wrapped)
    wrapped.__cause__ = wrapped
    assert not may_follow_from_lost_peer(wrapped), "a circle ends"


def reduce_until_alone(rank: int, store: str, answers) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        answers.put((may_follow_from_lost_peer(error), type(error).__name__))
    try:
        dist.all_reduce("no tensor")
    except Exception as error:
        answers.put((may_follow_from_lost_peer(error), type(error).__name__))


def test_a_collective_whose_peer_has_died(tmp_path):
    """Gloo has no type of its own for it."""
    context = get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=reduce_until_alone, args=(rank, str(tmp_path / "store"), answers))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    try:
        assert answers.get(timeout=60) == (True, "RuntimeError")
        assert answers.get(timeout=60)[0] is False, "a mistake of the caller"
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
