"""Who waits until a reader has copied tensors off the GPU is told when it has, or never will."""

from __future__ import annotations

import errno
import os

import pytest

from rlinf.scheduler.collective.payload import Packer, Unpacker
from rlinf.scheduler.collective.shm import SegmentPool
from rlinf.scheduler.collective.shm_budget import NodeBudget
from rlinf.scheduler.errors import SchedulerError, WorkerDied


class Exporter:
    """Stands for the GPU's: it knows who was given which tensor."""

    def __init__(self, readers: dict[int, str]):
        self.readers = dict(readers)

    def release(self, token: int) -> None:
        self.readers.pop(token, None)

    def release_all_for(self, reader: str) -> list[int]:
        lost = [token for token, holder in self.readers.items() if holder == reader]
        for token in lost:
            del self.readers[token]
        return lost


class Waiter:
    def __init__(self):
        self.told: list[BaseException | None] = []

    def __call__(self, error: BaseException | None = None) -> None:
        self.told.append(error)


@pytest.fixture
def packer():
    packer = Packer()
    packer._exporter = Exporter({1: "a:0", 2: "a:0", 3: "b:0"})
    # As `encode(copy=False)` leaves it.
    packer._open = {1: None, 2: None, 3: None}
    yield packer
    packer.pool.close()


def test_all_tensors_have_to_be_copied(packer):
    waiter = Waiter()
    packer.when_released([1, 2], waiter)
    packer.released("a:0", [], [1])
    assert waiter.told == []
    packer.released("a:0", [], [2])
    assert waiter.told == [None]


def test_copied_before_anybody_asked(packer):
    packer.released("a:0", [], [1, 2])
    waiter = Waiter()
    packer.when_released([1, 2], waiter)
    assert waiter.told == [None]


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_reader_that_ends_before_it_has_copied(packer, asked_first):
    mine, other, death = Waiter(), Waiter(), WorkerDied("a:0", signal="SIGKILL")
    packer.when_released([3], other)
    packer.released("a:0", [], [1])
    if asked_first:
        packer.when_released([1, 2], mine)
    packer.reader_gone("a:0", death)
    if not asked_first:
        packer.when_released([1, 2], mine)
    assert mine.told == [death]
    assert other.told == [], "another reader's tensors are not its business"
    packer.released("b:0", [], [3])
    assert other.told == [None]
    assert packer._open == {} and packer._failed == {}, "nothing is remembered for ever"


def test_tensors_that_were_copied_for_the_reader_are_not_remembered(packer):
    packer._exporter.readers[9] = "a:0"
    packer.released("a:0", [], [9])
    assert 9 not in packer._open


def test_memory_that_is_lent_is_opened_once(monkeypatch):
    torch = pytest.importorskip("torch")
    from rlinf.scheduler.collective import cuda_ipc
    from rlinf.scheduler.collective.cuda_ipc import CudaToken, LeaseToken

    opened = []

    def open_memory(token, clone):
        assert not clone
        opened.append(token.id)
        return torch.full((4,), float(token.id))

    monkeypatch.setattr(cuda_ipc, "import_tensor", open_memory)
    unpacker = Unpacker(None, None, None)

    def borrow(sender, number, slot="weights 0", count=4):
        return unpacker.borrow(sender, LeaseToken(CudaToken(number, "GPU-a", ()), slot, count))

    first = borrow("actor:0", 1)
    part = borrow("actor:0", 1, count=3)
    assert opened == [1] and part.shape == (3,) and part.data_ptr() == first.data_ptr()
    borrow("actor:0", 2, slot="weights 1")
    assert borrow("actor:0", 1).data_ptr() == first.data_ptr() and opened == [1, 2]
    assert borrow("actor:0", 3).tolist() == [3.0] * 4, "another one has taken its slot"
    borrow("actor:1", 1)
    unpacker.sender_gone("actor:0")
    borrow("actor:1", 1)
    assert opened == [1, 2, 3, 1]
    borrow("actor:0", 3)
    assert opened[-1] == 3, "what a dead sender lent was closed"


class Loop:
    """Runs at once what the I/O thread would run soon."""

    def defer(self, function):
        function()


class Links:
    def expect(self, sender, transfers):
        return []


@pytest.mark.parametrize("files_left", [True, False])
def test_a_block_that_cannot_be_opened_is_let_go(monkeypatch, tmp_path, files_left):
    budget = NodeBudget(1 << 20, str(tmp_path / "table"))
    pool = SegmentPool(budget)
    descriptor = pool.write([b"x" * 1000]).descriptor
    if files_left:
        # The segment of a process that is gone.
        descriptor = descriptor._replace(place=descriptor.place._replace(file_id=(0, 0)))
    else:
        monkeypatch.setattr(os, "open", no_more_files)
    released = []

    def send_release(_, blocks, tokens):
        released.append((blocks, tokens))

    unpacker = Unpacker(Loop(), send_release, Links())
    payload = unpacker.take(None, "a:0", [], descriptor, 1000)
    assert released == [([descriptor.block], [])]
    with pytest.raises(SchedulerError) as caught:
        payload.load()
    assert isinstance(caught.value, WorkerDied) == files_left
    assert ("ulimit -n" in str(caught.value)) == (not files_left)
    pool.close()


def no_more_files(*_):
    raise OSError(errno.EMFILE, "Too many open files")
