"""Hand large CPU buffers to processes of the same node: one copy in, none out.

The sender's :class:`SegmentPool` copies the buffers of a message into an anonymous memfd segment
and sends its :class:`Descriptor`. The :class:`SegmentReader` of the receiver opens the segment
through ``/proc/<pid>/fd/<fd>``, maps it and returns views. When the last view is gone it calls
back, the sender is told, and the memory is used again: its pages are there already, which saves
several times the cost of the copy itself. Nothing has a name, so the kernel frees everything
when the processes die, in whatever order.

Where a reader cannot see the sender's ``/proc`` entry (another pid namespace; ask
:meth:`SegmentReader.can_open`), ``write(..., named=True)`` uses a file in ``/dev/shm`` instead,
unlinked as soon as its one reader has opened it. Such files are not reused. Both processes must
belong to the same user.

Received memory is always the receiver's to write to. A block with one reader is mapped shared,
and the sender does not touch it before it is released; one for several is mapped copy-on-write.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlinf.scheduler.collective.shm_segment import (
    MIN_SLOT,
    NamedFile,
    Place,
    Region,
    Segment,
    SegmentUnavailable,
    Slot,
    flat,
    human,
    layout,
    map_file,
    opened,
    size_class,
    sweep,
    unlink,
)
from rlinf.scheduler.net.doorbell import interruptible


class SegmentPoolFull(MemoryError):
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

    def __init__(
        self,
        max_bytes: int | None = None,
        max_idle_bytes: int | None = None,
        shm_dir: str = "/dev/shm",
    ) -> None:
        """Create an empty pool.

        Args:
            max_bytes: Most memory that blocks and idle segments may take together; by default
                half of what the machine or its cgroup has available now.
            max_idle_bytes: Most memory kept for reuse; by default a quarter of ``max_bytes``.
            shm_dir: Where named blocks live.
        """
        self.id = secrets.randbits(63)
        self.max_bytes = _available_memory() // 2 if max_bytes is None else max_bytes
        self.max_idle_bytes = self.max_bytes // 4 if max_idle_bytes is None else max_idle_bytes
        self._shm_dir = shm_dir
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._segments: dict[int, Segment] = {}
        # Free slots by size. Warm ones have pages, the last one released at the right end.
        self._warm: dict[int, deque[Slot]] = {}
        self._cold: dict[int, list[Slot]] = {}
        self._live: dict[int, tuple[Slot | NamedFile, list[Hashable]]] = {}
        self._in_use = 0
        self._idle = 0
        self._writes = Counter(warm=0, cold=0)
        self._probe: Segment | None = None
        self._swept = False

    def write(
        self,
        buffers: Sequence[Any],
        owners: Iterable[Hashable] = (None,),
        timeout: float = 60.0,
        named: bool = False,
    ) -> Block:
        """Copy the buffers of one message into one block.

        Args:
            buffers: Contiguous bytes-like objects.
            owners: A tag for each reader; the block is free when each has released it.
            timeout: Seconds to wait for memory when the pool is at its limit.
            named: Use a file that readers in another pid namespace can open.

        Returns:
            The block, whose descriptor the readers open.

        Raises:
            SegmentPoolFull: No memory was released in time.
            ValueError: The message is larger than the whole pool.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("a SegmentPool cannot be used in a forked child: create a new one")
        views, holders = [flat(b) for b in buffers], list(owners)
        if not holders:
            raise ValueError("a block needs at least one owner")
        lengths = tuple(v.nbytes for v in views)
        offsets, end = layout(lengths)
        place = self._take(size_class(end), time.monotonic() + timeout, named)
        warm = end <= place.filled
        try:
            place.write(views, offsets, end)
        except BaseException as error:
            with self._changed:
                self._put_back(place, reuse=False)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise SegmentPoolFull(
                    f"the system has no room for {human(end)} of shared memory in "
                    f"{self._shm_dir if named else 'memory'}: free some, or give the container "
                    "more (--shm-size, memory limit)"
                ) from error
            raise
        with self._changed:
            self._writes["warm" if warm else "cold"] += 1
            block = next(self._ids)
            self._live[block] = place, holders
        return Block(block, Descriptor(self.id, block, place.place, lengths, len(holders) > 1))

    def release(self, block: int, owner: Hashable = None) -> None:
        """Say that one reader is done with a block; an unknown block or owner is ignored."""
        with self._changed:
            place, owners = self._live.get(block, (None, ()))
            if place is None or owner not in owners:
                return
            owners.remove(owner)
            if not owners:
                del self._live[block]
                self._put_back(place, reuse=True)

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
                oldest = min((q for q in self._warm.values() if q), key=lambda q: q[0].released)
                slot = oldest.popleft()
                self._idle -= slot.nbytes
                self._cool(slot)

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

    def probe(self) -> Descriptor:
        """Describe an empty block by which a reader finds out whether it can open this pool."""
        with self._changed:
            if self._probe is None:
                self._probe = Segment(0, MIN_SLOT)
            return Descriptor(self.id, 0, Slot(self._probe, 0).place, (), False)

    def close(self) -> None:
        """Let go of everything; readers keep the views they have. No write may be under way."""
        with self._changed:
            for place, _ in self._live.values():
                if isinstance(place, NamedFile):
                    place.close()
            for segment in (*self._segments.values(), *filter(None, [self._probe])):
                segment.close()
            self._probe = None
            for table in (self._segments, self._warm, self._cold, self._live):
                table.clear()
            self._in_use = self._idle = 0
            self._changed.notify_all()

    def _take(self, size: int, deadline: float, named: bool) -> Slot | NamedFile:
        if size > self.max_bytes:
            raise ValueError(
                f"a message of {human(size)} does not fit into a shared memory pool of "
                f"{human(self.max_bytes)}: raise max_bytes or send it in parts"
            )
        with self._changed:
            while True:
                place = None if named else self._pop_warm(size)
                if place is not None:
                    self._idle -= place.nbytes
                    break
                self.trim(min(self._idle, self.max_bytes - self._in_use - size))
                if self._in_use + self._idle + size <= self.max_bytes:
                    place = self._named_file(size) if named else self._pop_cold(size)
                    break
                if not interruptible(self._changed.wait, deadline - time.monotonic()):
                    raise SegmentPoolFull(self._who_holds(size))
            self._in_use += place.nbytes
            return place

    def _pop_warm(self, size: int) -> Slot | None:
        """The memory used last; up to twice too large, since fresh pages cost more than those."""
        sizes = [s for s, slots in self._warm.items() if slots and size <= s <= 2 * size]
        return self._warm[min(sizes)].pop() if sizes else None

    def _pop_cold(self, size: int) -> Slot:
        slots = self._cold.setdefault(size, [])
        if not slots:
            segment = Segment(next(self._ids), size)
            self._segments[segment.key] = segment
            slots.extend(segment.slots())
        slot = slots.pop()
        slot.segment.warm_slots += 1
        return slot

    def _put_back(self, place: Slot | NamedFile, reuse: bool) -> None:
        self._in_use -= place.nbytes
        if isinstance(place, NamedFile):
            place.close()
        elif not reuse:
            self._cool(place)
        else:
            place.released = time.monotonic()
            self._warm.setdefault(place.nbytes, deque()).append(place)
            self._idle += place.nbytes
            self.trim(self.max_idle_bytes)
        self._changed.notify_all()

    def _cool(self, slot: Slot) -> None:
        """Free the pages of a slot, and its segment when that has none left."""
        slot.punch()
        segment = slot.segment
        cold = self._cold.setdefault(slot.nbytes, [])
        cold.append(slot)
        segment.warm_slots -= 1
        if segment.warm_slots == 0:
            self._cold[slot.nbytes] = [s for s in cold if s.segment is not segment]
            del self._segments[segment.key]
            segment.close()

    def _named_file(self, size: int) -> NamedFile:
        if not self._swept:
            self._swept = True
            sweep(self._shm_dir)
        return NamedFile(self._shm_dir, size)

    def _who_holds(self, size: int) -> str:
        blocks: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for place, owners in self._live.values():
            for owner in map(str, owners):
                blocks[owner] += 1
                held[owner] += place.nbytes
        holders = ", ".join(f"{o}: {blocks[o]} blocks, {human(b)}" for o, b in held.most_common(8))
        return (
            f"no room for {human(size)} in a shared memory pool of {human(self.max_bytes)}, "
            f"{human(self._in_use)} of it in use. Readers that hold it: {holders or 'none'}. "
            "They keep received tensors alive or do not keep up: drop or clone what is kept, "
            "or raise max_bytes."
        )


class SegmentReader:
    """The receiver's side: maps segments once and tells when what was received is let go."""

    def __init__(self, max_maps: int = 1024) -> None:
        """Create a reader.

        Args:
            max_maps: Segments to keep mapped for their next use. Those of trimmed segments hold
                no memory, only address space, until they are the oldest.
        """
        self._max_maps = max_maps
        self._lock = threading.Lock()
        self._maps: OrderedDict[tuple[int, int], Region] = OrderedDict()

    def open(self, descriptor: Descriptor, on_release: Callable[[int], None]) -> list[memoryview]:
        """Map a block.

        Args:
            descriptor: What the sender's pool wrote.
            on_release: Called once with the block's id when no view on it is left, nor anything
                made from one. The garbage collector may call it in any thread and in the middle
                of anything: it must not wait or take a lock. ``deque.append`` is right.

        Returns:
            A writable view for each buffer. If this raises, ``on_release`` is not called.

        Raises:
            SegmentUnavailable: The sender died or is out of sight.
        """
        place, lengths, shared = descriptor.place, descriptor.lengths, descriptor.shared
        offsets, end = layout(lengths)
        if shared or place.path:
            with opened(place) as fd:
                region = map_file(fd, max(end, 1), place.start, private=shared)
            if not shared:
                unlink(place.path)
            address = region.address
        else:
            region = self._cached(descriptor)
            address = region.address + place.start
        block = Region(address, end, region)
        weakref.finalize(block, on_release, descriptor.block).atexit = False
        view = memoryview(np.asarray(block))
        return [view[o : o + n] for o, n in zip(offsets, lengths, strict=True)]

    def can_open(self, descriptor: Descriptor) -> bool:
        """Whether blocks like this one (see :meth:`SegmentPool.probe`) can be opened here."""
        try:
            with opened(descriptor.place):
                return True
        except SegmentUnavailable:
            return False

    def forget(self, pool: int) -> None:
        """Unmap the segments of a pool whose process is gone; views in use stay valid."""
        with self._lock:
            for key in [k for k in self._maps if k[0] == pool]:
                del self._maps[key]

    def _cached(self, descriptor: Descriptor) -> Region:
        key = descriptor.pool, descriptor.place.segment
        with self._lock:
            region = self._maps.get(key)
            if region is None:
                with opened(descriptor.place) as fd:
                    region = self._maps[key] = map_file(fd, descriptor.place.segment_bytes)
                if len(self._maps) > self._max_maps:
                    self._maps.popitem(last=False)
            else:
                self._maps.move_to_end(key)
            return region


def _available_memory() -> int:
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    available = int(lines["MemAvailable"].split()[0]) << 10
    group = "/sys/fs/cgroup/memory."
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or no limit ("max")
        with open(group + "max") as limit, open(group + "current") as used:
            available = min(available, int(limit.read()) - int(used.read()))
    return available
