"""Workers as threads that broadcast to one another, and count what crosses each link."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

LIMIT = 20
"""Seconds until a wait is a deadlock."""


class Held(NamedTuple):
    """What a receiver holds."""

    obj: Any
    give_back: Any


class Bus:
    """What workers have in common.

    Attributes:
        bytes: of tensors and of patches, by link: (sender, receiver).
        error: the first one of any worker.
    """

    def __init__(self, sizes: dict[str, int], nodes: dict[str, int] | None = None) -> None:
        self.sizes, self.nodes = sizes, nodes or {}
        self.bytes: Counter[tuple[tuple[str, int], tuple[str, int]]] = Counter()
        self.lock = threading.Lock()
        self.queues: dict[Any, queue.Queue] = defaultdict(queue.Queue)
        self.error: BaseException | None = None

    def queue(self, key: Any) -> queue.Queue:
        """What waits for one receiver of one source."""
        with self.lock:
            return self.queues[key]

    def run(self, function: Any) -> dict[tuple[str, int], Any]:
        """Run a function of the worker on all of them at once; return what each one got."""
        workers = [Member(self, g, r) for g, size in self.sizes.items() for r in range(size)]

        def watched(worker: Member) -> Any:
            try:
                return function(worker)
            except BaseException as error:
                self.error = self.error or error
                raise

        with ThreadPoolExecutor(len(workers)) as pool:
            found = [pool.submit(watched, worker) for worker in workers]
        if self.error is not None:
            raise self.error
        pairs = zip(workers, found, strict=True)
        return {(worker.group_name, worker.rank): future.result() for worker, future in pairs}

    def wait(self, given_back: threading.Event, what: str) -> None:
        """Wait until a receiver has read something."""
        end = time.monotonic() + LIMIT
        while not given_back.wait(0.02):
            assert self.error is None and time.monotonic() < end, what


class Member:
    """A worker, as far as weight updates know it."""

    def __init__(self, bus: Bus, group: str, rank: int) -> None:
        self._bus, self.group_name, self.rank = bus, group, rank
        self.world_size = bus.sizes[group]
        self._cluster_node_rank = bus.nodes.get(group, 0)

    def _world_size_of(self, group: str) -> int:
        return self._bus.sizes[group]

    def broadcast(
        self, obj: Any, groups: Any, source: Any, async_op: bool = False, hold: bool = False
    ) -> Any:
        """As `Worker.broadcast`."""
        own = self.group_name, self.rank
        members = frozenset((group, rank) for group, ranks in groups for rank in ranks)
        assert own in members and source in members
        if own != source:
            value, given_back = self._bus.queue((own, source, members)).get(timeout=LIMIT)
            if hold:
                return Held(value, given_back.set)
            given_back.set()
            return value
        waits = []
        for member in members - {own}:
            given_back = threading.Event()
            waits.append(given_back)
            with self._bus.lock:
                self._bus.bytes[own, member] += sum(map(_size, tree_leaves(obj)))
            self._bus.queue((member, own, members)).put((obj, given_back))
        assert not async_op
        for given_back in waits:
            self._bus.wait(given_back, f"nobody took what {own} sent")
        return None


def _size(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.nbytes
    return len(leaf) if isinstance(leaf, bytes) else 0
