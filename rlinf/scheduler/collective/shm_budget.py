"""How much shared memory all processes of a node may use together for transfers.

A small file, one per user and pid namespace, holds a table: for each pool the process that owns it
and the bytes that it has taken, and the sum of all. A pool takes bytes before it uses fresh memory
and gives them back when it returns the memory to the system. The table is changed under `flock`,
for microseconds. A process that dies leaves its row behind; whoever finds no room removes the rows
of processes that are gone and adds up the rest. The last process that closes removes the file.

Each pool is sure of a share: up to a quarter of the budget is divided equally, and nobody takes
what another one has left of its share. So a consumer can answer, and go on, however much a producer
has queued. Memory that a living process has mapped of a dead one's pool is not counted any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import numpy as np

from rlinf.scheduler.collective.shm_segment import map_file

LIMIT_VARIABLE = "RLINF_TRANSFER_MEMORY"
"""Environment variable that sets the limit, in bytes."""

_ROWS = 4096
_TOTAL, _POOLS, _WANTED, _FIRST_ROW = 0, 1, 2, 4
_PID, _START, _BYTES, _WIDTH = 0, 1, 2, 4
_TABLE_BYTES = 8 * (_FIRST_ROW + _ROWS * _WIDTH)
_MOST_SHARE = 256 << 20
_LOCK_SECONDS = 30.0
_RETRY_SECONDS = 0.0002
_CLEAN_SECONDS = 0.2
_WANTED_NANOSECONDS = 500_000_000


class NodeBudget:
    """A pool's part in the budget of its node.

    Its owner sees to it that one thread at a time uses it.
    """

    def __init__(self, limit: int | None = None, path: str | None = None) -> None:
        """Enter a row into the table.

        Args:
            limit: Most bytes that all pools of the node may have taken for this one to take more.
                By default RLINF_TRANSFER_MEMORY, else half of what the machine or its cgroup has
                available now, with what transfers have taken counted as available.
            path: File of the table; by default that of the node.

        Raises:
            ValueError: RLINF_TRANSFER_MEMORY is not a positive number of bytes.
        """
        self._path = path or _path_of_node()
        self._pid = os.getpid()
        self._cleaned = 0.0
        while True:
            # Nobody else's file, wherever a link of that name may lead.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
            with _Lock(self._fd, self._path):
                if os.fstat(self._fd).st_nlink:
                    os.ftruncate(self._fd, _TABLE_BYTES)
                    table = np.asarray(map_file(self._fd, _TABLE_BYTES)).view(np.int64)
                    self._rows = table[_FIRST_ROW:].reshape(_ROWS, _WIDTH)
                    # Single numbers are read and written faster through this.
                    self._words = memoryview(table)
                    self._mine = self._enter()
                    break
            # Its last user has just removed it.
            os.close(self._fd)
        try:
            self.limit = self._default_limit() if limit is None else limit
        except BaseException:
            self.close()
            raise

    @property
    def used(self) -> int:
        """Bytes that all pools of the node have taken."""
        return self._words[_TOTAL]

    @property
    def share(self) -> int:
        """Bytes of which each pool is sure."""
        return min(self.limit // (4 * max(self._words[_POOLS], 1)), _MOST_SHARE)

    @property
    def most(self) -> int:
        """Bytes that this pool can take when nobody else has taken any."""
        return self.limit - self.share * (self._words[_POOLS] - 1)

    def can_ever_take(self, nbytes: int) -> bool:
        """Return whether so many bytes fit when nobody else has taken any."""
        if nbytes > self.most:
            with _Lock(self._fd, self._path):
                self._clean()
        return nbytes <= self.most

    def take(self, nbytes: int) -> bool:
        """Take bytes; False if the node has not so many left."""
        with _Lock(self._fd, self._path):
            if self.used + nbytes > self.most:
                self._clean()
                if self.used + nbytes + self._kept_for_others(nbytes) > self.limit:
                    return False
            self._add(nbytes)
            return True

    def _kept_for_others(self, nbytes: int) -> int:
        """Return what the other pools have left of their shares, unless this is within ours."""
        share = self.share
        if self._words[self._mine + _BYTES] + nbytes <= share:
            return 0
        taken = self._rows[self._rows[:, _PID] != 0, _BYTES]
        left = np.maximum(share - taken, 0).sum()
        return int(left) - max(share - self._words[self._mine + _BYTES], 0)

    def give_back(self, nbytes: int) -> None:
        """Give bytes back that were taken."""
        with _Lock(self._fd, self._path):
            self._add(-nbytes)

    def want(self) -> None:
        """Say that a pool of this node waits for memory; for a moment, so say it again."""
        self._words[_WANTED] = time.monotonic_ns() + _WANTED_NANOSECONDS

    @property
    def wanted(self) -> bool:
        """Whether another pool waits for memory and would get what this one gives back."""
        return (
            self._words[_WANTED] > time.monotonic_ns()
            and self._words[self._mine + _BYTES] > self.share
        )

    def holders(self) -> list[tuple[int, int]]:
        """Return process ids and the bytes that each has taken, the largest first."""
        with _Lock(self._fd, self._path):
            rows = self._rows[self._rows[:, _BYTES] > 0].tolist()
        return sorted(((r[_PID], r[_BYTES]) for r in rows), key=lambda held: -held[1])

    def close(self) -> None:
        """Give everything back and leave the table; for the process that has entered it."""
        if self._fd < 0 or os.getpid() != self._pid:
            return
        with _Lock(self._fd, self._path):
            for word in range(_WIDTH):
                self._words[self._mine + word] = 0
            self._clean(at_once=True)
            if not self._words[_POOLS]:
                os.unlink(self._path)
        os.close(self._fd)
        self._fd = -1

    def _add(self, nbytes: int) -> None:
        self._words[self._mine + _BYTES] += nbytes
        self._words[_TOTAL] += nbytes

    def _enter(self) -> int:
        """Take a free row; returns where it begins."""
        self._clean(at_once=True)
        free = np.flatnonzero(self._rows[:, _PID] == 0)
        if not len(free):
            raise RuntimeError(f"{self._path} has no row left: {_ROWS} pools share memory already")
        self._rows[free[0]] = (self._pid, _started(self._pid), 0, 0)
        self._words[_POOLS] += 1
        return _FIRST_ROW + int(free[0]) * _WIDTH

    def _clean(self, at_once: bool = False) -> None:
        """Remove the rows of processes that are gone, and add up the others."""
        now = time.monotonic()
        if not at_once and now - self._cleaned < _CLEAN_SECONDS:
            return
        self._cleaned = now
        for row in np.flatnonzero(self._rows[:, _PID]):
            pid, start, *_ = self._rows[row].tolist()
            if _started(pid) != start:
                self._rows[row] = 0
        self._words[_TOTAL] = int(self._rows[:, _BYTES].sum())
        self._words[_POOLS] = int(np.count_nonzero(self._rows[:, _PID]))

    def _default_limit(self) -> int:
        text = os.environ.get(LIMIT_VARIABLE)
        if text is None:
            return (_available_memory() + self.used) // 2
        if not text.isdecimal() or not int(text):
            raise ValueError(
                f"{LIMIT_VARIABLE}={text!r} must be a positive number of bytes, such as {8 << 30}"
            )
        return int(text)


class _Lock:
    """The lock of the table, for a `with` block."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def __enter__(self) -> None:
        deadline = 0.0
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                # Held for microseconds, unless its holder was stopped just then.
                now = time.monotonic()
                deadline = deadline or now + _LOCK_SECONDS
                if now > deadline:
                    raise TimeoutError(
                        f"process {os.getpid()} waited {_LOCK_SECONDS:g} s for the lock of "
                        f"{self._path}: a process that holds it must have been stopped"
                    ) from None
                time.sleep(_RETRY_SECONDS)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


def _path_of_node() -> str:
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
    try:
        # Pids mean the same to all who share a table.
        domain = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        domain = f"process-{os.getpid()}"
    return f"{folder}/rlinf-memory-{os.getuid()}-{domain}"


def _started(pid: int) -> int:
    """Return the start time of a process, which later ones of its pid do not have; 0 if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _available_memory() -> int:
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    available = int(lines["MemAvailable"].split()[0]) << 10
    group = "/sys/fs/cgroup/memory."
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or no limit ("max")
        with open(group + "max") as limit, open(group + "current") as used:
            available = min(available, int(limit.read()) - int(used.read()))
    return available
