"""The receiver's side of shared memory: maps what a pool of the same node has written."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from rlinf.scheduler.collective.shm import Descriptor
from rlinf.scheduler.collective.shm_segment import Region, layout, map_file, opened


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
        if shared:
            with opened(place) as fd:
                region = map_file(fd, max(end, 1), place.start, private=True)
            address = region.address
        else:
            region = self._cached(descriptor)
            address = region.address + place.start
        block = Region(address, end, region)
        weakref.finalize(block, on_release, descriptor.block).atexit = False
        view = memoryview(np.asarray(block))
        return [view[o : o + n] for o, n in zip(offsets, lengths, strict=True)]

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
