"""Hand large CPU buffers to processes of the same node: one copy in, none out.

The sender's :class:`SegmentPool` copies the buffers of a message into a slot of an anonymous memfd
segment and sends its :class:`Descriptor`. The :class:`SegmentReader` of the receiver opens the
segment through ``/proc/<pid>/fd/<fd>``, maps it and returns views. When the last view is gone it
calls back, the sender is told, and the memory is used again: its pages are there already, which
saves several times the cost of the copy itself. Nothing has a name, so the kernel frees everything
when the processes die, in whatever order. Both processes must belong to the same user and pid
namespace.

Three rules bound what is held:

- All processes of a node share one budget (:class:`NodeBudget`), which counts what is in use and
  what is idle. A writer that finds no room first gives up its own idle memory, then waits until
  its deadline; while it waits, processes that hold more than their share keep no idle memory.
- Memory that was not used again for ``IDLE_SECONDS`` goes back to the system. A thread sees to
  that, which exists only while there is idle memory.
- Slots of one size share segments, and each new segment has as many slots as all segments of that
  size before it, so that the number of file descriptors grows with the logarithm of the number of
  blocks.

Received memory is always the receiver's to write to. A block with one reader is mapped shared,
and the sender does not touch it before it is released; one for several is mapped copy-on-write.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from rlinf.scheduler import trace
from rlinf.scheduler.collective.shm_budget import NodeBudget
from rlinf.scheduler.collective.shm_limit import LIMIT_VARIABLE
from rlinf.scheduler.collective.shm_segment import (
    Place,
    Segment,
    Slot,
    flat,
    human,
    layout,
    size_class,
)
from rlinf.scheduler.deadlines import Deadline
from rlinf.scheduler.errors import WaitTimeout
from rlinf.scheduler.net import forks
from rlinf.scheduler.net.interrupts import interruptible

IDLE_SECONDS = 3.0
"""How long memory is kept for its next use."""

_FIRST_SEGMENT_BYTES = 8 << 20
_LOOK_SECONDS = 0.02
"""How often a writer that waits looks whether another process has made room."""
_SCARCE = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class SegmentPoolFull(WaitTimeout, MemoryError):
    """No shared memory became free in time; the message says who holds it."""


class Descriptor(NamedTuple):
    """Where the buffers of a block are; small and picklable."""

    pool: int
    """Random identity of the sender's pool."""
    block: int
    """Identity of the block within the pool; never used twice."""
    place: Place
    lengths: tuple[int, ...]
    """Size of each buffer; :func:`layout` gives the offsets."""
    shared: bool
    """Whether the block has several readers."""


class Block(NamedTuple):
    """A written block: what to release and what to send."""

    id: int
    descriptor: Descriptor


class PoolStats(NamedTuple):
    """What a pool holds and has done."""

    bytes_in_use: int
    bytes_idle: int
    segments: int
    blocks: int
    warm_writes: int
    cold_writes: int


class SegmentPool:
    """The sender's side: shared memory that is written, handed out and used again.

    Thread-safe, but not for use in a forked child.
    """

    def __init__(self, budget: NodeBudget | None = None, max_idle_bytes: int | None = None) -> None:
        """Create an empty pool.

        Args:
            budget: What the pool may use, together with others; by default that of the node.
            max_idle_bytes: Most memory kept for reuse; by default a quarter of the budget.
        """
        self.id = secrets.randbits(63)
        self.budget = NodeBudget() if budget is None else budget
        self.max_idle_bytes = self.budget.limit // 4 if max_idle_bytes is None else max_idle_bytes
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._segments: dict[int, Segment] = {}
        # Free slots by size. Warm ones have pages, the last one released at the right end.
        self._warm: dict[int, deque[Slot]] = {}
        self._cold: dict[int, list[Slot]] = {}
        self._live: dict[int, tuple[Slot, list[Hashable]]] = {}
        self._in_use = 0
        self._idle = 0
        self._writes = Counter(warm=0, cold=0)
        self._closed = threading.Event()
        self._waiting = 0
        self._sweeps = False
        self._punches = False
        forks.in_child(self)

    def write(
        self, buffers: Sequence[Any], owners: Iterable[Hashable] = (None,), timeout: float = 60.0
    ) -> Block:
        """Copy the buffers of one message into one block.

        Args:
            buffers: Contiguous bytes-like objects.
            owners: A tag for each reader; the block is free when each has released it.
            timeout: Seconds to wait for memory when there is none.

        Returns:
            The block, whose descriptor the readers open.

        Raises:
            SegmentPoolFull: No memory was released in time.
            ValueError: The message is larger than the whole budget.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("a SegmentPool cannot be used in a forked child: create a new one")
        views, holders = [flat(b) for b in buffers], list(owners)
        if not holders:
            raise ValueError("a block needs at least one owner")
        lengths = tuple(v.nbytes for v in views)
        offsets, end = layout(lengths)
        wait = _Wait(timeout)
        slot = self._take(size_class(end), wait)
        while True:
            warm = end <= slot.filled
            try:
                slot.write(views, offsets, end)
                break
            except BaseException as error:
                with self._changed:
                    self._in_use -= slot.nbytes
                    self._cool(slot)
                    if not isinstance(error, OSError) or error.errno not in _SCARCE:
                        raise
                    self._wait(wait, slot.nbytes, error)
                slot = self._take(size_class(end), wait)
        wait.record()
        with self._changed:
            self._writes["warm" if warm else "cold"] += 1
            block = next(self._ids)
            self._live[block] = slot, holders
        return Block(block, Descriptor(self.id, block, slot.place, lengths, len(holders) > 1))

    def release(self, block: int, owner: Hashable = None) -> None:
        """Say that one reader is done with a block; an unknown block or owner is ignored."""
        with self._changed:
            slot, owners = self._live.get(block, (None, ()))
            if slot is None or owner not in owners:
                return
            owners.remove(owner)
            if not owners:
                del self._live[block]
                self._put_back(slot)

    def hand_over(self, block: int, owner: Hashable, new_owner: Hashable) -> bool:
        """Put one reader in another's place; False if the block is gone."""
        with self._changed:
            _, owners = self._live.get(block, (None, []))
            if owner not in owners:
                return False
            owners[owners.index(owner)] = new_owner
            return True

    def share(self, block: int, new_owner: Hashable) -> bool:
        """Add a reader to a block that was written for several; False if the block is gone."""
        with self._changed:
            if block not in self._live:
                return False
            self._live[block][1].append(new_owner)
            return True

    def release_all_for(self, owner: Hashable) -> None:
        """Release whatever a reader holds, for instance because it died."""
        with self._changed:
            for block, (_, owners) in list(self._live.items()):
                for _ in range(owners.count(owner)):
                    self.release(block, owner)

    def trim(self, idle_bytes: int = 0) -> None:
        """Give idle memory back to the system, oldest first, until ``idle_bytes`` are left."""
        with self._changed:
            while self._idle > max(idle_bytes, 0):
                self._cool(self._pop_oldest())

    def stats(self) -> PoolStats:
        """Count what is held now and what was written so far."""
        with self._changed:
            return PoolStats(
                self._in_use,
                self._idle,
                len(self._segments),
                len(self._live),
                self._writes["warm"],
                self._writes["cold"],
            )

    def close(self) -> None:
        """Let go of everything; readers keep the views they have. No write may be under way."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            while self._punches:
                self._changed.wait()
            self._closed.set()
            for segment in self._segments.values():
                segment.close()
            for table in (self._segments, self._warm, self._cold, self._live):
                table.clear()
            self._in_use = self._idle = 0
            self.budget.close()
            self._changed.notify_all()

    def close_in_child(self, reason: str) -> None:
        """Let go of the memory in a forked child, which would keep it after its parent's end."""
        for segment in self._segments.values():
            segment.close()
        self._segments = {}

    def _take(self, size: int, wait: _Wait) -> Slot:
        with self._changed:
            if not self._closed.is_set() and not self.budget.can_ever_take(size):
                raise ValueError(
                    f"a message of {human(size)} does not fit into the {human(self.budget.most)} "
                    "of shared memory that a process of this node may use for transfers: send it "
                    f"in parts, or raise the limit of the node (now {self.budget.limit} bytes) by "
                    f"{LIMIT_VARIABLE}"
                )
            while True:
                if self._closed.is_set():
                    raise RuntimeError("this process has closed its shared memory")
                slot = self._pop_warm(size)
                shortage = None
                if slot is None and self._make_room(size):
                    try:
                        slot = self._pop_cold(size)
                    except OSError as error:
                        self.budget.give_back(size)
                        if error.errno not in _SCARCE:
                            raise
                        shortage = error
                        if self._idle:
                            self.trim()
                            continue
                if slot is not None:
                    self._in_use += slot.nbytes
                    return slot
                self._wait(wait, size, shortage)

    def _make_room(self, size: int) -> bool:
        """Take the bytes of a fresh slot from the budget; give up idle memory if need be."""
        while not self.budget.take(size):
            if not self._idle:
                return False
            self.trim(self._idle - size)
        return True

    def _wait(self, wait: _Wait, size: int, shortage: OSError | None) -> None:
        """Wait until something has changed here, or may have in another process.

        Raises:
            SegmentPoolFull: The deadline has passed.
        """
        left = wait.left()
        if left <= 0:
            raise self._full(size, wait.timeout, shortage) from shortage
        self.budget.want()
        self._waiting += 1
        try:
            interruptible(self._changed.wait, min(left, _LOOK_SECONDS))
        finally:
            self._waiting -= 1

    def _pop_warm(self, size: int) -> Slot | None:
        """Return the memory used last.

        Up to twice too large, since fresh pages cost more than those.
        """
        sizes = [s for s, slots in self._warm.items() if slots and size <= s <= 2 * size]
        if not sizes:
            return None
        slot = self._warm[min(sizes)].pop()
        self._idle -= slot.nbytes
        return slot

    def _pop_cold(self, size: int) -> Slot:
        cold = self._cold.setdefault(size, [])
        slot = cold.pop() if cold else None
        if slot is None:
            segments = [s for s in self._segments.values() if s.slot_bytes == size]
            slot = next(filter(None, (segment.cut() for segment in segments)), None)
        if slot is None:
            first = max(1, _FIRST_SEGMENT_BYTES // size)
            segment = Segment(next(self._ids), size, sum(s.slots for s in segments) or first)
            self._segments[segment.key] = segment
            slot = segment.cut()
        slot.segment.warm_slots += 1
        return slot

    def _put_back(self, slot: Slot) -> None:
        self._in_use -= slot.nbytes
        if self.budget.wanted and not self._waiting:
            self.trim()
            self._cool(slot)
            return
        slot.released = time.monotonic()
        self._warm.setdefault(slot.nbytes, deque()).append(slot)
        self._idle += slot.nbytes
        self.trim(self.max_idle_bytes)
        if self._idle and not self._sweeps:
            self._sweeps = True
            threading.Thread(target=self._sweep, name="rlinf-memory", daemon=True).start()
        self._changed.notify_all()

    def _pop_oldest(self) -> Slot:
        oldest = min((q for q in self._warm.values() if q), key=lambda q: q[0].released)
        slot = oldest.popleft()
        self._idle -= slot.nbytes
        return slot

    def _cool(self, slot: Slot, punch: bool = True) -> None:
        """Free the pages of a slot, and its segment when that has none left."""
        if punch:
            slot.punch()
        segment = slot.segment
        cold = self._cold.setdefault(slot.nbytes, [])
        cold.append(slot)
        segment.warm_slots -= 1
        if segment.warm_slots == 0:
            self._cold[slot.nbytes] = [s for s in cold if s.segment is not segment]
            del self._segments[segment.key]
            segment.close()
        self.budget.give_back(slot.nbytes)
        self._changed.notify_all()

    def _sweep(self) -> None:
        """Give back what was idle for too long, until nothing is idle."""
        while True:
            with self._changed:
                released = [slots[0].released for slots in self._warm.values() if slots]
                if not released:
                    self._sweeps = False
                    return
                left = min(released) + IDLE_SECONDS - time.monotonic()
                slot = self._pop_oldest() if left <= 0 else None
                self._punches = slot is not None
            if slot is None:
                self._closed.wait(left)
                continue
            try:
                # Takes long for a large slot, and others need not wait for it.
                slot.punch()
            finally:
                with self._changed:
                    self._punches = False
                    self._cool(slot, punch=False)

    def _full(self, size: int, timeout: float, shortage: OSError | None) -> SegmentPoolFull:
        blocks: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for slot, owners in self._live.values():
            for owner in map(str, owners):
                blocks[owner] += 1
                held[owner] += slot.nbytes
        holders = [f"{o}: {blocks[o]} blocks, {human(b)}" for o, b in held.most_common(8)]
        others = [held for held in self.budget.holders() if held[0] != self._pid]
        holders += [f"process {pid}: {human(nbytes)}" for pid, nbytes in others[:8]]
        budget = f"{human(self.budget.used)} of {human(self.budget.limit)} are taken"
        advice = (
            "Readers keep received tensors alive or do not keep up: drop or clone what is kept, "
            f"bound the channel (maxsize, maxbytes), or set {LIMIT_VARIABLE} (bytes)."
        )
        if shortage is not None:
            advice = (
                f"The system refuses: {shortage.strerror}. Free memory, or give the container more "
                "(memory limit); for open files raise ulimit -n."
            )
        return SegmentPoolFull(
            f"room for {human(size)} in the shared memory of this node ({budget})",
            waiter=f"process {self._pid}",
            seconds=timeout,
            holders=holders,
            advice=advice,
        )


class _Wait:
    """A writer's wait for memory: its deadline, and what the trace is told of it."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._deadline = Deadline(timeout)
        self._began: float | None = None

    def left(self) -> float:
        """Return the seconds that are left; called when there is need to wait."""
        if self._began is None:
            self._began = time.perf_counter()
        return 0.0 if self._deadline.passed() else self._deadline.left() or 0.0

    def record(self) -> None:
        """Record the wait, if there was one."""
        recorder = None if self._began is None else trace.current()
        if recorder is not None:
            recorder.add("room in shared memory", trace.WAIT, self._began, time.perf_counter())
