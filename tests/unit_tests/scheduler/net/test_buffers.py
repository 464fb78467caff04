"""Memory of large messages is used again, but only when nobody refers to it any more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf.scheduler.collective.codec import decode, encode
from rlinf.scheduler.net import buffers
from rlinf.scheduler.net.buffers import SMALLEST, BufferPool


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def test_memory_is_given_again_when_the_last_view_of_it_is_gone():
    pool = BufferPool()
    first = pool.get(SMALLEST)
    place = address(first)
    part = np.frombuffer(first[100:200], np.uint8)
    del first
    second = pool.get(SMALLEST)
    assert pool.reused == 0 and address(second) != place, "a part of it is still referred to"
    del part
    third = pool.get(SMALLEST)
    assert pool.reused == 1 and address(third) == place


VIEWS = {
    "slice": lambda view: view[100:200],
    "frombuffer": lambda view: np.frombuffer(view, np.uint8)[5:].reshape(-1, 1),
    "asarray": lambda view: np.asarray(view).view(np.int16)[::2],
    "ndarray": lambda view: np.ndarray((7,), np.float32, view),
    "torch": lambda view: torch.frombuffer(view, dtype=torch.float32)[1:],
    "torch of ndarray": lambda view: torch.from_numpy(np.ndarray((7,), np.float32, view)),
    "array": lambda view: decode(encode(np.zeros(SMALLEST, np.uint8)).header, [view]),
    "tensor": lambda view: decode(encode(torch.zeros(SMALLEST, dtype=torch.uint8)).header, [view]),
    "bfloat16": lambda view: decode(encode(torch.zeros(9999).bfloat16()).header, [view[:19998]]),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_whatever_refers_to_memory_keeps_it(kind):
    pool = BufferPool()
    view = pool.get(SMALLEST)
    place = address(view)
    kept = VIEWS[kind](view)
    del view
    assert address(pool.get(SMALLEST)) != place, f"{kept} is overwritten by the next message"
    del kept
    free = [free.memory.ctypes.data for free in pool._free]
    assert place in free


@pytest.mark.parametrize(("size", "again", "fits"), [(3, 3, True), (3, 2, True), (3, 1, False)])
def test_memory_that_is_far_too_large_is_left_for_others(size, again, fits):
    pool = BufferPool()
    view = pool.get(size * SMALLEST)
    del view
    smaller = pool.get(again * SMALLEST)
    assert len(smaller) == again * SMALLEST
    assert pool.reused == int(fits)


def test_what_is_kept_has_limits():
    pool = BufferPool()
    pool._most = 3 * SMALLEST
    views = [pool.get(SMALLEST) for _ in range(5)]
    del views
    assert sum(free.memory.nbytes for free in pool._free) == 3 * SMALLEST
    newest = max(free.since for free in pool._free)
    pool.drop_old(newest + buffers._KEPT_SECONDS)
    assert pool._free == []


def test_small_memory_is_not_kept():
    pool = BufferPool()
    view = pool.get(SMALLEST - 1)
    assert len(view) == SMALLEST - 1
    del view
    assert pool._free == []
