"""The budget of shared memory that the processes of a node have together."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rlinf.scheduler import WaitTimeout
from rlinf.scheduler.collective import shm_budget
from rlinf.scheduler.collective.shm import SegmentPool, SegmentPoolFull
from rlinf.scheduler.collective.shm_budget import NodeBudget, remove_unused_table
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


def test_processes_of_a_node_have_one_budget(
    budget, holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until it has what it waits for, however slow the machine is.
    monkeypatch.setattr(shm_budget, "_WANTED_NANOSECONDS", 10**12)
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
    wait_until(lambda: pool._waiting)
    pipe.send("let go")
    assert pipe.poll(PROMPTLY)
    assert pipe.recv() <= MiB, "somebody waits, so it keeps no more than its share for later"
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


def test_the_limit_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit() -> int:
        budget = NodeBudget(path=str(tmp_path / "table"))
        try:
            return budget.limit
        finally:
            budget.close()

    monkeypatch.setenv("RLINF_TRANSFER_MEMORY", str(3 * MiB))
    assert limit() == 3 * MiB
    monkeypatch.delenv("RLINF_TRANSFER_MEMORY")
    assert limit() > 16 * MiB


def test_all_have_the_limit_of_the_first(budget) -> None:
    first = budget(64 * MiB)
    first.take(40 * MiB)
    late = budget(16 * MiB)
    assert late.limit == first.limit == 64 * MiB
    assert late.take(9 * MiB), "more than its share, and the node has it"
    first.close()
    late.close()
    assert budget(16 * MiB).limit == 16 * MiB


def test_who_comes_when_all_is_taken_gets_its_share(budget) -> None:
    first = budget(64 * MiB)
    assert first.take(64 * MiB)
    late = budget(64 * MiB)
    assert late.take(late.share)
    assert not late.take(1) and not first.take(1)


# ---- processes that are gone, stopped, or short of files


def test_a_large_message_fits_as_soon_as_others_are_gone(
    budget, holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = holder(64 * MiB, 1)
    mine = budget(64 * MiB)
    monkeypatch.setattr(shm_budget, "_CLEAN_SECONDS", 1e9)
    assert not mine.can_ever_take(64 * MiB)
    process.kill()
    process.join(PROMPTLY)
    assert mine.can_ever_take(64 * MiB)


def test_who_cannot_be_looked_at_is_taken_to_live(budget, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = budget(64 * MiB), budget(64 * MiB)
    second.take(40 * MiB)

    def no_more_files(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(shm_budget, "_started", no_more_files)
    monkeypatch.setattr(shm_budget, "_CLEAN_SECONDS", 0.0)
    assert not first.take(30 * MiB)
    assert first.used == 40 * MiB and first.take(8 * MiB)


def test_a_table_that_stays_locked_is_waited_for_and_named(
    budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = budget(64 * MiB)
    mine.take(3 * MiB)
    monkeypatch.setattr(shm_budget, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(shm_budget, "_GIVE_BACK_SECONDS", 0.05)
    with open(tmp_path / "table", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(WaitTimeout, match=r"(?s)lock of .*table.*lslocks"):
            mine.take(MiB)
        mine.give_back(MiB)
    assert mine.take(5 * MiB)
    assert mine.used == 7 * MiB, "what was given back meanwhile is not forgotten"


# ---- the file


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The places where the table of the node may be."""
    places = tmp_path / "first", tmp_path / "second"
    for place in places:
        place.mkdir()
    monkeypatch.setattr(shm_budget, "_FOLDERS", tuple(map(str, places)))
    return places


def test_the_table_is_elsewhere_where_there_is_no_room(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folders
    allocate = os.posix_fallocate

    def full(fd: int, offset: int, length: int) -> None:
        if str(first) in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        budget = NodeBudget(64 * MiB)
    assert not list(first.iterdir()) and len(list(second.iterdir())) == 1
    # There is room now, and still there is one budget.
    other = NodeBudget(16 * MiB)
    assert other.limit == 64 * MiB and not list(first.iterdir())
    for each in (budget, other):
        each.close()
    assert not list(second.iterdir())


def test_the_memory_of_the_table_is_there_before_it_is_touched(folders: tuple[Path, Path]) -> None:
    budget = NodeBudget(64 * MiB)
    (table,) = folders[0].iterdir()
    assert table.stat().st_blocks * 512 >= table.stat().st_size
    budget.close()


def test_a_table_that_somebody_has_removed_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "table"
    first = NodeBudget(MiB, str(path))
    path.unlink()
    second = NodeBudget(MiB, str(path))
    first.close()
    assert path.exists(), "it is not that of the first one"
    path.unlink()
    second.close()


def enter_and_die() -> None:
    """Enter the table of the node, and leave without a word."""
    os._exit(0 if NodeBudget(8 * MiB) else 1)


def test_what_killed_processes_leave_behind_is_removed(folders: tuple[Path, Path]) -> None:
    process = mp.get_context("fork").Process(target=enter_and_die)
    process.start()
    process.join(PROMPTLY)
    assert process.exitcode == 0 and len(list(folders[0].iterdir())) == 1
    remove_unused_table()
    assert not list(folders[0].iterdir())
    remove_unused_table()
    living = NodeBudget(8 * MiB)
    remove_unused_table()
    assert len(list(folders[0].iterdir())) == 1, "somebody uses it"
    living.close()


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
