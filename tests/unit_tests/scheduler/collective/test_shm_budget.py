"""The budget of shared memory that the processes of a node have together."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rlinf.scheduler.collective.shm import SegmentPool, SegmentPoolFull
from rlinf.scheduler.collective.shm_budget import NodeBudget
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

MiB = 1 << 20
spawn = mp.get_context("spawn")


@pytest.fixture
def budget(tmp_path: Path) -> Iterator[Callable[..., NodeBudget]]:
    """Makes budgets that share one table."""
    made = []

    def make(limit: int) -> NodeBudget:
        made.append(NodeBudget(limit, str(tmp_path / "table")))
        return made[-1]

    yield make
    for each in made:
        each.close()


def hold(path: str, limit: int, blocks: int, pipe: Connection) -> None:
    """Write blocks of 1 MiB and keep them until a word comes, then let them go and be idle."""
    pool = SegmentPool(NodeBudget(limit, path))
    written = [pool.write([bytes(MiB)]) for _ in range(blocks)]
    pipe.send(pool.budget.used)
    pipe.recv()
    for block in written:
        pool.release(block.id)
    pipe.send(pool.stats().bytes_idle)
    pipe.recv()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[..., tuple[mp.Process, Connection]]]:
    """Starts processes that hold memory."""
    started = []

    def start(limit: int, blocks: int) -> tuple[mp.Process, Connection]:
        pipe, other = spawn.Pipe()
        args = (str(tmp_path / "table"), limit, blocks, other)
        process = spawn.Process(target=hold, args=args, daemon=True)
        process.start()
        started.append(process)
        assert pipe.poll(3 * PROMPTLY), "the other process does not answer"
        assert pipe.recv() >= blocks * MiB
        return process, pipe

    yield start
    for process in started:
        process.kill()
        process.join(PROMPTLY)


def test_processes_of_a_node_have_one_budget(budget, holder) -> None:
    _, pipe = holder(8 * MiB, 5)
    pool = SegmentPool(budget(8 * MiB))
    for _ in range(3):
        pool.write([bytes(MiB)], ["reader:0"])
    with pytest.raises(SegmentPoolFull, match=r"8 MiB of 8 MiB are taken") as caught:
        pool.write([bytes(MiB)], timeout=0.1)
    assert "reader:0: 3 blocks, 3 MiB" in str(caught.value)
    assert f"process {pool.budget.holders()[0][0]}: 5 MiB" in str(caught.value)
    writing = threading.Thread(target=pool.write, args=([bytes(2 * MiB)],))
    writing.start()
    # Somebody waits, so what is let go there is not kept for later.
    wait_until(lambda: pool._waiting)
    pipe.send("let go")
    writing.join(PROMPTLY)
    assert pool.stats().blocks == 4
    pool.close()


def test_what_a_process_held_that_was_killed_is_free(budget, holder) -> None:
    process, _ = holder(8 * MiB, 6)
    pool = SegmentPool(budget(8 * MiB))
    pool.write([bytes(MiB)])
    writing = threading.Thread(target=pool.write, args=([bytes(4 * MiB)],))
    writing.start()
    wait_until(lambda: pool._waiting)
    os.kill(process.pid, signal.SIGKILL)
    writing.join(PROMPTLY)
    assert pool.stats().blocks == 2 and pool.budget.used == 5 * MiB
    pool.close()


def test_each_is_sure_of_a_share_however_much_another_has_taken(budget) -> None:
    greedy, modest = budget(64 * MiB), budget(64 * MiB)
    while greedy.take(MiB):
        pass
    assert greedy.used == greedy.most == 64 * MiB - modest.share
    while modest.take(MiB):
        pass
    assert greedy.used == 64 * MiB and modest.share == 8 * MiB
    modest.give_back(modest.share)
    assert not greedy.take(MiB), "what the other one gives back of its share is still its own"
    greedy.give_back(MiB)
    assert greedy.take(MiB)
    modest.close()
    assert greedy.take(8 * MiB), "nobody else is there now"


def test_shares_are_small_where_there_is_much(budget) -> None:
    budgets = [budget(1 << 40) for _ in range(4)]
    assert budgets[0].most > (1 << 40) - (1 << 30)


def test_a_message_that_can_never_fit_is_refused_at_once(budget) -> None:
    other, pool = budget(16 * MiB), SegmentPool(budget(16 * MiB))
    assert other.share == 2 * MiB
    with pytest.raises(ValueError, match=r"16 MiB does not fit into the 14 MiB.*16777216 bytes"):
        pool.write([bytes(15 * MiB)])
    pool.close()


def test_the_last_one_removes_the_table(tmp_path: Path) -> None:
    path = tmp_path / "table"
    first, second = NodeBudget(MiB, str(path)), NodeBudget(MiB, str(path))
    first.take(1000)
    first.close()
    first.close()
    assert path.exists() and second.used == 0
    second.close()
    assert not path.exists()


def test_the_limit_can_be_set(budget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_TRANSFER_MEMORY", str(3 * MiB))
    assert budget(None).limit == 3 * MiB
    monkeypatch.setenv("RLINF_TRANSFER_MEMORY", "3 GB")
    with pytest.raises(ValueError, match=r"RLINF_TRANSFER_MEMORY='3 GB' must be a positive number"):
        budget(None)
    monkeypatch.delenv("RLINF_TRANSFER_MEMORY")
    assert budget(None).limit > 16 * MiB


def test_many_threads_with_pools_of_their_own(budget) -> None:
    pools = [SegmentPool(budget(64 * MiB)) for _ in range(4)]

    def work(pool: SegmentPool) -> None:
        for turn in range(50):
            pool.release(pool.write([bytes((1 + turn % 7) * MiB)]).id)
            pool.trim()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PROMPTLY)
    assert pools[0].budget.used == 0
    for pool in pools:
        pool.close()
