"""Shared memory between real processes: one copy, no leak, whoever dies first."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import pathlib
import resource
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.scheduler.collective import shm
from rlinf.scheduler.collective.shm import (
    IDLE_SECONDS,
    Descriptor,
    SegmentPool,
    SegmentPoolFull,
)
from rlinf.scheduler.collective.shm_budget import NodeBudget
from rlinf.scheduler.collective.shm_reader import SegmentReader
from rlinf.scheduler.collective.shm_segment import (
    ALIGNMENT,
    MIN_SLOT,
    SegmentUnavailable,
    size_class,
)
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

MiB = 1 << 20
spawn = mp.get_context("spawn")


def pattern(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def resident_kib() -> int:
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return int(rollup.split("Rss:")[1].split()[0])


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def pool_of(nbytes: int, max_idle_bytes: int | None = None) -> SegmentPool:
    """A pool with a budget of its own."""
    folder = tempfile.mkdtemp()
    return SegmentPool(NodeBudget(nbytes, f"{folder}/table"), max_idle_bytes)


def serve_reader(pipe: Connection) -> None:
    """Do to blocks what the parent says, in another process."""
    reader, released, held = SegmentReader(), deque(), []
    while (request := pipe.recv()) is not None:
        verb, argument = request
        if verb == "sum":
            views = reader.open(argument, released.append)
            answer = [int(np.frombuffer(v, np.uint8).sum()) if v.nbytes else 0 for v in views]
            del views
            answer = answer, released.popleft()
        elif verb == "hold":
            held.append(reader.open(argument, released.append))
            answer = len(released)
        elif verb == "write":
            views = reader.open(argument, released.append)
            views[0][:] = bytes(len(views[0]))
            held.append(views)
            answer = None
        elif verb == "memory":
            answer = resident_kib(), open_files()
        pipe.send(answer)


def serve_sender(pipe: Connection) -> None:
    """Write one block and wait to be killed."""
    pool = pool_of(64 * MiB)
    pipe.send([pool.write([pattern(3 * MiB, seed)]).descriptor for seed in (1, 2)])
    pipe.recv()


class Child:
    """A process at the other end of a pipe."""

    def __init__(self, target: Any) -> None:
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=target, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def ask(self, verb: str, argument: Any = None) -> Any:
        self.pipe.send((verb, argument))
        return self.answer()

    def answer(self) -> Any:
        assert self.pipe.poll(20), "the other process does not answer"
        return self.pipe.recv()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)


@pytest.fixture(scope="module", autouse=True)
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for the tables of budgets, also of those of other processes."""
    folder = str(tmp_path_factory.mktemp("tables"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child(serve_reader)
    yield child
    child.kill()


@pytest.fixture
def pool() -> Iterator[SegmentPool]:
    pool = pool_of(256 * MiB)
    yield pool
    pool.close()


@pytest.fixture
def reader() -> SegmentReader:
    return SegmentReader()


def open_here(reader: SegmentReader, descriptor: Descriptor) -> tuple[list[memoryview], deque]:
    released: deque = deque()
    return reader.open(descriptor, released.append), released


# ---- the way from one process to another


def test_buffers_arrive_and_memory_is_used_again(pool: SegmentPool, child: Child) -> None:
    buffers = [pattern(n, n) for n in (0, 1, 63, 4096, MiB + 3)]
    for turn in range(5):
        block = pool.write(buffers)
        sums, released = child.ask("sum", block.descriptor)
        assert sums == [int(b.sum()) for b in buffers]
        assert released == block.id
        pool.release(released)
        stats = pool.stats()
        assert (stats.segments, stats.cold_writes, stats.warm_writes) == (1, 1, turn)
        assert stats.bytes_in_use == 0 and stats.bytes_idle > 0


def test_views_are_aligned_and_writable(pool: SegmentPool, reader: SegmentReader) -> None:
    buffers = [pattern(n).reshape(n, 1) for n in (1, 63, 65, 5000)]
    for owners in (["a"], ["a", "b"]):
        views, _ = open_here(reader, pool.write(buffers, owners).descriptor)
        for view, buffer in zip(views, buffers, strict=True):
            assert np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT == 0
            assert not view.readonly and view.tobytes() == buffer.tobytes()


def test_sender_dies_while_its_memory_is_read(reader: SegmentReader) -> None:
    sender = Child(serve_sender)
    first, second = sender.answer()
    views, released = open_here(reader, first)
    sender.kill()
    assert views[0].tobytes() == pattern(3 * MiB, 1).tobytes()
    again, _ = open_here(reader, second)  # in the same segment, which is mapped here
    assert again[0].tobytes() == pattern(3 * MiB, 2).tobytes()
    reader.forget(first.pool)
    del views, again
    assert list(released) == [first.block]
    with pytest.raises(SegmentUnavailable, match=str(first.place.pid)):
        reader.open(first, released.append)


def test_receiver_dies_with_blocks_in_hand(pool: SegmentPool) -> None:
    victim = Child(serve_reader)
    blocks = [pool.write([pattern(MiB)], ["victim"]) for _ in range(3)]
    for block in blocks:
        assert victim.ask("hold", block.descriptor) == 0
    other = pool.write([pattern(MiB)], ["victim", "other"])
    victim.kill()
    pool.release_all_for("victim")
    assert pool.stats().blocks == 1
    pool.release(blocks[0].id, "victim")  # a late word of the dead changes nothing
    pool.release(other.id, "victim")
    assert pool.stats().blocks == 1
    pool.release(other.id, "other")
    assert pool.stats().bytes_in_use == 0


def test_broadcast_readers_do_not_see_each_other(
    pool: SegmentPool, reader: SegmentReader, child: Child
) -> None:
    data = pattern(MiB)
    block = pool.write([data], ["here", "child"])
    child.ask("write", block.descriptor)
    views, released = open_here(reader, block.descriptor)
    assert views[0].tobytes() == data.tobytes()
    views[0][:9] = b"my change"
    del views
    pool.release(released.popleft(), "here")
    assert pool.stats().blocks == 1
    pool.release(block.id, "child")
    assert pool.stats().blocks == 0
    # What a reader wrote privately must not hide what the memory holds next.
    block = pool.write([pattern(MiB, 5)], ["here", "child"])
    assert pool.stats().warm_writes == 1
    views, _ = open_here(reader, block.descriptor)
    assert views[0].tobytes() == pattern(MiB, 5).tobytes()


def test_two_thousand_transfers_leave_nothing_behind(child: Child) -> None:
    pool = pool_of(64 * MiB)
    data = pattern(2 * MiB)
    sizes = np.random.default_rng(0).integers(1, 2 * MiB, 2000)

    def transfer(nbytes: int) -> None:
        block = pool.write([data[:nbytes]])
        sums, released = child.ask("sum", block.descriptor)
        assert sums == [int(data[:nbytes].sum())]
        pool.release(released)

    for nbytes in sizes[:300]:
        transfer(nbytes)
    before, files, segments = resident_kib(), open_files(), pool.stats().segments
    child_before, child_files = child.ask("memory")
    for nbytes in sizes[300:]:
        transfer(nbytes)
    child_after, child_files_after = child.ask("memory")
    assert pool.stats().bytes_in_use == 0 and pool.stats().segments <= segments + 2
    assert open_files() <= files + 2 and child_files_after == child_files
    assert resident_kib() - before < 8 << 10 and child_after - child_before < 8 << 10
    pool.close()
    assert open_files() < files


# ---- release


def test_released_once_after_the_last_thing_made_of_it(
    pool: SegmentPool, reader: SegmentReader
) -> None:
    block = pool.write([pattern(80_000), pattern(80_000)])
    views, released = open_here(reader, block.descriptor)
    array = np.ndarray((100, 100), "f8", views[0])
    part = array[::2].T[3:]
    view = memoryview(part)
    del views, array, part
    gc.collect()
    assert not released
    del view
    gc.collect()
    assert list(released) == [block.id]


def test_tensors_hold_their_memory(pool: SegmentPool, reader: SegmentReader) -> None:
    torch = pytest.importorskip("torch")
    from rlinf.scheduler.collective.codec import decode, encode

    obj = {"a": torch.randn(10_000), "b": [torch.ones(5000, dtype=torch.bfloat16), np.ones(5000)]}
    header, buffers = encode(obj)
    block = pool.write(buffers)
    views, released = open_here(reader, block.descriptor)
    out = decode(header, views)
    del views
    assert torch.equal(out["a"], obj["a"]) and torch.equal(out["b"][0], obj["b"][0])
    out["a"].add_(1)
    keep = out["b"][0][7:]
    del out
    gc.collect()
    assert not released
    del keep
    gc.collect()
    assert list(released) == [block.id]


def test_empty_message_and_empty_owners(pool: SegmentPool, reader: SegmentReader) -> None:
    views, released = open_here(reader, pool.write([]).descriptor)
    assert views == [] and len(released) == 1
    views, _ = open_here(reader, pool.write([b"", np.empty((0, 3))]).descriptor)
    assert [len(v) for v in views] == [0, 0]
    with pytest.raises(ValueError, match="owner"):
        pool.write([b"x"], [])


# ---- limits


def test_full_pool_says_who_holds_it() -> None:
    pool = pool_of(4 * MiB)
    for _ in range(4):
        pool.write([pattern(MiB)], ["rollout:3"])
    started = time.monotonic()
    with pytest.raises(SegmentPoolFull, match=r"rollout:3: 4 blocks, 4 MiB"):
        pool.write([b"x"], timeout=0.2)
    assert 0.1 < time.monotonic() - started < PROMPTLY
    with pytest.raises(ValueError, match="RLINF_TRANSFER_MEMORY"):
        pool.write([pattern(5 * MiB)])
    pool.close()


def test_a_waiting_writer_goes_on_when_memory_is_released() -> None:
    pool = pool_of(2 * MiB)
    block = pool.write([pattern(2 * MiB)])
    threading.Timer(0.1, pool.release, [block.id]).start()
    pool.write([pattern(MiB)], timeout=PROMPTLY)
    pool.close()


def test_idle_memory_makes_room_and_is_limited(pool: SegmentPool) -> None:
    pool = pool_of(8 * MiB, max_idle_bytes=8 * MiB)
    small = [pool.write([pattern(MIN_SLOT)]) for _ in range(64)]
    for block in small[1:]:
        pool.release(block.id)
    assert pool.stats().bytes_idle == 63 * MIN_SLOT
    # One slot of the slab is in use, and still the other 63 can give up their pages.
    large = pool.write([pattern(7 * MiB)], timeout=0)
    stats = pool.stats()
    assert stats.bytes_in_use + stats.bytes_idle <= 8 * MiB
    pool.release(large.id)
    pool.max_idle_bytes = 0
    pool.release(small[0].id)
    assert pool.stats()[:3] == (0, 0, 0)
    pool.close()


def test_memory_of_trimmed_segments_is_really_free(
    pool: SegmentPool, reader: SegmentReader
) -> None:
    views, released = open_here(reader, pool.write([pattern(64 * MiB)]).descriptor)
    assert views[0][-1] is not None
    np.frombuffer(views[0], np.uint8).sum()
    before = resident_kib()
    del views
    pool.release(released.popleft())
    pool.trim()  # the reader still has the segment mapped
    assert before - resident_kib() > 60 << 10


def test_size_classes() -> None:
    for nbytes in [*range(0, 300_000, 777), *(2**k + d for k in range(16, 32) for d in (-1, 0, 1))]:
        size = size_class(nbytes)
        assert nbytes <= size <= max(nbytes * 1.25 + 1, nbytes + MIN_SLOT)
        assert size % MIN_SLOT == 0 and size_class(size) == size


def test_a_forked_child_may_not_write(pool: SegmentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(RuntimeError, match="forked"):
        pool.write([b"x"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3 * MiB)), max_size=30))
def test_blocks_in_use_are_never_touched(steps: list[tuple[int, int]]) -> None:
    pool, reader, live = pool_of(256 * MiB, 4 * MiB), SegmentReader(max_maps=2), {}
    data = pattern(6 * MiB)
    for verb, number in steps:
        if verb == 0 and live:
            block, (view, _) = live.popitem()
            pool.release(block)
        elif verb == 1:
            pool.trim(number)
        else:
            block = pool.write([data[number : 2 * number]])
            views, released = open_here(reader, block.descriptor)
            live[block.id] = views[0], (number, released)
        for view, (length, _) in live.values():
            assert view[0] == data[length] and view[-1] == data[2 * length - 1]
    for view, (length, released) in live.values():
        assert view == memoryview(data[length : 2 * length]) and not released
    assert pool.stats().blocks == len(live) and pool.stats().bytes_idle <= 4 * MiB
    pool.close()


def test_many_threads(pool: SegmentPool, reader: SegmentReader) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            released: deque = deque()
            for turn in range(60):
                data = pattern(20_000 * (1 + (seed + turn) % 9), seed * 1000 + turn)
                block = pool.write([data])
                views = reader.open(block.descriptor, released.append)
                assert views[0] == memoryview(data)
                del views
                pool.release(released.popleft())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and pool.stats().blocks == 0


def test_other_threads_run_during_a_large_copy(pool: SegmentPool) -> None:
    data, ticks, done = np.ones(128 * MiB, np.uint8), [], threading.Event()

    def tick() -> None:
        while not done.wait(0.0005):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()

    def ticks_during_a_copy(idle: int) -> int:
        pool.trim(idle)
        started = time.perf_counter()
        block = pool.write([data])
        ended = time.perf_counter()
        pool.release(block.id)
        return sum(started < t < ended for t in ticks)

    try:
        for idle in (0, data.nbytes):  # to fresh pages, then to some that are there
            # On a busy machine a thread that could run may not get to run at once.
            wait_until(lambda idle=idle: ticks_during_a_copy(idle) >= 2)
    finally:
        done.set()
        thread.join()


def test_no_memory_in_the_system_is_waited_for_and_explained(
    monkeypatch: pytest.MonkeyPatch, pool: SegmentPool
) -> None:
    refused = threading.Event()

    def full(*_: Any) -> None:
        refused.set()
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(SegmentPoolFull, match="Cannot allocate memory"):
            pool.write([b"x" * MiB], timeout=0.1)
    assert pool.stats()[:4] == (0, 0, 0, 0)
    refused.clear()
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    writing = threading.Thread(target=pool.write, args=([b"x" * MiB],))
    writing.start()
    assert refused.wait(PROMPTLY)
    monkeypatch.setattr(os, "pwrite", pwrite)
    writing.join(PROMPTLY)
    assert pool.stats().blocks == 1


# ---- what is idle, and how many files are open


def test_idle_memory_goes_back_within_five_seconds(
    pool: SegmentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE_SECONDS < 5
    monkeypatch.setattr(shm, "IDLE_SECONDS", 0.3)
    blocks = [pool.write([pattern(n * MiB)]) for n in (1, 2, 9)]
    kept = pool.write([pattern(MiB)])
    for block in blocks:
        pool.release(block.id)
    wait_until(lambda: pool.budget.used == pool.stats().bytes_in_use)
    assert pool.stats().bytes_in_use == MiB and pool.stats().segments == 1
    pool.release(kept.id)
    wait_until(lambda: pool.budget.used == 0)
    assert pool.stats()[:4] == (0, 0, 0, 0)


def test_memory_that_is_used_again_stays(
    pool: SegmentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm, "IDLE_SECONDS", 0.5)
    until = time.monotonic() + 1.5
    longest, last = 0.0, time.monotonic()
    while time.monotonic() < until:
        pool.release(pool.write([pattern(MiB)]).id)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    # On a busy machine the loop itself may have been idle for that long.
    assert pool.stats().cold_writes == 1 or longest > 0.4


def test_a_pool_may_be_closed_while_idle_memory_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shm, "IDLE_SECONDS", 0.0)
    for _ in range(20):
        pool = pool_of(64 * MiB)
        for block in [pool.write([pattern(MiB)]) for _ in range(5)]:
            pool.release(block.id)
        pool.close()
        assert pool.stats()[:4] == (0, 0, 0, 0)


def write_many(pipe: Connection) -> None:
    """Write many large blocks with few files, and read them all."""
    pool, reader = pool_of(1024 * MiB), SegmentReader()
    limit = open_files() + 12
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    data = pattern(5_000_000)
    blocks = []
    for number in range(60):
        data[0] = number
        blocks.append(pool.write([data]).descriptor)
    views = [open_here(reader, block)[0][0] for block in blocks]
    pipe.send([view[0] for view in views])
    pipe.recv()


def test_many_large_blocks_need_few_files() -> None:
    child = Child(write_many)
    assert child.answer() == list(range(60))
    child.kill()


def write_without_files(pipe: Connection) -> None:
    """Write while no more files can be opened, then until some can."""
    pool = pool_of(256 * MiB)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool.write([pattern(MiB)])
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        pool.write([pattern(20 * MiB)], timeout=0.1)
    except SegmentPoolFull as error:
        pipe.send(str(error))
    writing = threading.Thread(target=pool.write, args=([pattern(20 * MiB)],), daemon=True)
    writing.start()
    wait_until(lambda: pool._waiting)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    writing.join(PROMPTLY)
    pipe.send(pool.stats().blocks)
    pipe.recv()


def test_too_many_open_files_are_waited_for() -> None:
    child = Child(write_without_files)
    said = child.answer()
    assert "Too many open files" in said and "ulimit -n" in said
    assert child.answer() == 2
    child.kill()


def fork_with_memory(pipe: Connection) -> None:
    """Tell what a forked child has open of the pool of its parent."""
    pool = pool_of(64 * MiB)
    for _ in range(2):
        block = pool.write([pattern(MiB)])
        pool.release(block.id)  # the second one is written through a mapping

    def traces() -> list[str]:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        opened = [os.readlink(link) for link in links if os.path.islink(link)]
        mapped = pathlib.Path("/proc/self/maps").read_text().splitlines()
        names = ("memfd:rlinf", pool.budget._path)
        files = [path for path in opened if any(name in path for name in names)]
        return files + [line for line in mapped if names[0] in line]

    pipe.send(len(traces()))
    if os.fork() == 0:
        pipe.send(traces())
        pool.close()
        os._exit(0)
    pipe.recv()
    pipe.send(pool.write([pattern(MiB)]).id)
    pipe.recv()


def test_a_forked_child_keeps_nothing_of_the_pool() -> None:
    child = Child(fork_with_memory)
    assert child.answer() == 3, "the segment, its mapping and the table"
    assert child.answer() == []
    assert child.ask("go on"), "the parent's pool is as it was"
    child.kill()
