"""Memory that two processes can map: memfd segments, cut into slots.

A segment is sparse: only slots that were written to take memory, and a slot can return its memory
to the system while its neighbours are in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 64
"""Every buffer of a block starts at a multiple of this."""
MIN_SLOT = 64 << 10
"""Smallest slot: the largest page size in use, since slots must start on a page."""

_MAX_PWRITE = 1 << 30
_MADV_POPULATE_WRITE = 23
_FALLOC_PUNCH_HOLE = 0x03

# mmap.mmap keeps a file descriptor per mapping and its madvise keeps the GIL; libc does neither.
_libc = ctypes.CDLL(None, use_errno=True)
_size, _ptr, _int, _off = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_long
_libc.mmap.argtypes, _libc.mmap.restype = (_ptr, _size, _int, _int, _int, _off), _ptr
_libc.munmap.argtypes = (_ptr, _size)
_libc.madvise.argtypes = (_ptr, _size, _int)
_libc.fallocate.argtypes = (_int, _int, _off, _off)
_MAP_FAILED = ctypes.c_void_p(-1).value


class SegmentUnavailable(OSError):
    """The sender's segment cannot be opened: its process is gone or out of sight."""


class Place(NamedTuple):
    """Where a block is: a part of a segment, and how to open that."""

    segment: int
    """Identity of the segment within its pool; never used twice."""
    pid: int
    fd: int
    file_id: tuple[int, int]
    """Device and inode: proof that pid and fd mean the same file to the reader."""
    segment_bytes: int
    start: int


def layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Place buffers of the given sizes one after the other, aligned.

    Returns:
        The offset of each and the size of all.
    """
    offsets, end = [], 0
    for length in lengths:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        end = start + length
    return offsets, end


def size_class(nbytes: int) -> int:
    """Round up to the size of a slot: four steps per power of two, whole pages."""
    step = max(MIN_SLOT, (1 << max(nbytes - 1, 1).bit_length()) // 8)
    return max(1, -(-nbytes // step)) * step


class Region:
    """Memory at an address, for NumPy; whatever is made of it keeps it and its owner alive.

    Not an array itself: NumPy shortens chains of arrays, and would drop one in the middle.
    """

    def __init__(self, address: int, nbytes: int, owner: Any = None) -> None:
        """Describe ``nbytes`` at ``address``, valid while ``owner`` lives."""
        self.address = address
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


def map_file(fd: int, nbytes: int, offset: int = 0, private: bool = False) -> Region:
    """Map a file to read and write; ``private`` keeps what is written to this process."""
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, kind, fd, offset)
    if address in (None, _MAP_FAILED):
        raise _os_error(f"mapping {human(nbytes)} of shared memory")
    region = Region(address, nbytes)
    weakref.finalize(region, _libc.munmap, address, nbytes).atexit = False
    return region


class Segment:
    """One memfd, cut into equal slots."""

    def __init__(self, key: int, slot_bytes: int, slots: int) -> None:
        """Create the memfd; it takes no memory before it is written to."""
        self.key = key
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.nbytes = slot_bytes * slots
        self.warm_slots = 0
        """Slots that have memory."""
        self.map: np.ndarray | None = None
        self._cut = 0
        self.fd = os.memfd_create("rlinf", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, self.nbytes)
            self.file_id = _file_id(self.fd)
        except BaseException:
            os.close(self.fd)
            raise

    def cut(self) -> Slot | None:
        """Return the next slot that was never used; None if there is none left."""
        if self._cut == self.slots:
            return None
        self._cut += 1
        return Slot(self, (self._cut - 1) * self.slot_bytes)

    def close(self) -> None:
        """Let go of the memory; readers keep what they have mapped."""
        self.map = None
        os.close(self.fd)


class Slot:
    """A piece of a segment that holds one block at a time."""

    def __init__(self, segment: Segment, start: int) -> None:
        """Describe the piece that starts at ``start``."""
        self.segment = segment
        self.start = start
        self.nbytes = segment.slot_bytes
        self.filled = 0
        """Bytes that have pages."""
        self.mapped = 0
        """Bytes whose pages are in our page table."""
        self.released = 0.0
        """When it was last released."""

    @property
    def place(self) -> Place:
        """Where a reader finds the slot."""
        s = self.segment
        return Place(s.key, os.getpid(), s.fd, s.file_id, s.nbytes, self.start)

    def write(self, buffers: Sequence[memoryview], offsets: Sequence[int], end: int) -> None:
        """Copy buffers to their offsets in the slot, large ones without the GIL."""
        segment, start = self.segment, self.start
        if end > self.filled:
            # write(2) neither zeroes fresh pages first nor faults on each of them, and without
            # memory it gives an error where a mapping gives SIGBUS.
            _pwrite(segment.fd, buffers, offsets, start)
            self.filled = end
            return
        target = segment.map
        if target is None:
            target = segment.map = np.asarray(map_file(segment.fd, segment.nbytes))
        if end > self.mapped:
            # One call instead of a fault per page. Kernels before 5.14 refuse it, and fault.
            _libc.madvise(target.ctypes.data + start, self.filled, _MADV_POPULATE_WRITE)
            self.mapped = self.filled
        for buffer, offset in zip(buffers, offsets, strict=True):
            if buffer.nbytes:
                first = start + offset
                np.copyto(target[first : first + buffer.nbytes], np.frombuffer(buffer, np.uint8))

    def punch(self) -> None:
        """Free the pages, also for readers that keep the segment mapped."""
        self.filled = self.mapped = 0
        if _libc.fallocate(self.segment.fd, _FALLOC_PUNCH_HOLE, self.start, self.nbytes):
            raise _os_error("freeing shared memory")


@contextlib.contextmanager
def opened(place: Place) -> Iterator[int]:
    """Open the segment of a block, and check that it is the one.

    Raises:
        SegmentUnavailable: It cannot be reached from here.
        OSError: This process has too many files open.
    """
    path = f"/proc/{place.pid}/fd/{place.fd}"
    reason = "that process has exited, or is of another user or pid namespace"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        kind: type[OSError] = SegmentUnavailable
        if error.errno in (errno.EMFILE, errno.ENFILE):
            reason = "this process has too many files open; raise its limit (ulimit -n)"
            kind = OSError
        message = f"cannot open {path}, shared memory of process {place.pid}: {reason}"
        raise kind(error.errno, message) from error
    try:
        if _file_id(fd) != place.file_id:
            message = f"{path} is not the shared memory of process {place.pid}: {reason}"
            raise SegmentUnavailable(errno.ESTALE, message)
        yield fd
    finally:
        os.close(fd)


def flat(buffer: Any) -> memoryview:
    """View a contiguous buffer as plain bytes."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def human(nbytes: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"


def _pwrite(fd: int, buffers: Sequence[memoryview], offsets: Sequence[int], start: int) -> None:
    for view, offset in zip(buffers, offsets, strict=True):
        position = start + offset
        while view.nbytes:
            done = os.pwrite(fd, view[:_MAX_PWRITE], position)
            view, position = view[done:], position + done


def _file_id(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _os_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
