"""The most memory that workers have taken."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np

from rlinf.scheduler import NodePlacementStrategy, Worker
from rlinf.scheduler.peak_memory import largest_by_group, peak_memory

MIB = 1 << 20


class Hoarder(Worker):
    """Takes memory and gives it back."""

    def take(self, count: int) -> None:
        """Touch that many bytes on rank 1."""
        if self.rank == 1:
            np.ones(count, np.uint8).sum()


def test_memory_that_was_given_back_counts():
    before = peak_memory()["host"]
    now = int(open("/proc/self/statm").read().split()[1]) * 4096
    block = np.ones(before - now + 64 * MIB, np.uint8)
    del block
    assert peak_memory()["host"] >= before + 60 * MIB
    assert "device" not in peak_memory()


def test_an_accelerator_counts_once_it_is_used(monkeypatch):
    used = [False]
    device = SimpleNamespace(is_initialized=lambda: used[0], max_memory_reserved=lambda: 7)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=device))
    monkeypatch.setenv("RLINF_TORCH_DEVICE", "cuda")
    assert "device" not in peak_memory()
    used[0] = True
    assert peak_memory()["device"] == 7


def test_the_largest_worker_of_a_group_counts():
    peaks = {"a:0": {"host": 1, "device": 9}, "a:1": {"host": 3}, "b:0": {"host": 2}}
    assert largest_by_group(peaks) == {"a": {"host": 3, "device": 9}, "b": {"host": 2}}


def test_workers_are_asked(shared_cluster):
    count = 96 * MIB
    group = Hoarder.create_group().launch(
        shared_cluster, name="hoarders", placement_strategy=NodePlacementStrategy([0, 0])
    )
    before = shared_cluster.peak_memory()
    group.take(count).wait()
    after = shared_cluster.peak_memory()
    assert after["hoarders:1"]["host"] - before["hoarders:1"]["host"] > count // 2
    assert after["hoarders:0"]["host"] - before["hoarders:0"]["host"] < count // 2
