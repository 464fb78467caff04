"""The shared memory that all processes of a node have together for transfers.

A small file, one per user and pid namespace, holds a table: the limit, for each pool the process
that owns it and the bytes that it has taken, and the sum of all. The first pool that enters sets
the limit for all. A pool takes bytes before it uses fresh memory and gives them back when it
returns the memory to the system. The table is changed under `flock`, for microseconds. A process
that dies leaves its row behind; whoever finds no room removes the rows of processes that are gone
and adds up the rest. The last process that closes removes the file.

Each pool is sure of a share: up to a quarter of the budget is divided equally, and nobody takes
what another one has left of its share. So a consumer can answer, and go on, however much a producer
has queued. Memory that a living process has mapped of a dead one's pool is not counted any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from pathlib import Path

import numpy as np

from rlinf.scheduler.collective.shm_limit import available_memory, given_limit
from rlinf.scheduler.collective.shm_segment import map_file
from rlinf.scheduler.errors import WaitTimeout
from rlinf.scheduler.net import forks

_ROWS = 4096
_TOTAL, _POOLS, _WANTED, _LIMIT, _FIRST_ROW = 0, 1, 2, 3, 4
_PID, _START, _BYTES, _WIDTH = 0, 1, 2, 4
_TABLE_BYTES = 8 * (_FIRST_ROW + _ROWS * _WIDTH)
_MOST_SHARE = 256 << 20
_LOCK_SECONDS = 30.0
_GIVE_BACK_SECONDS = 1.0
_RETRY_SECONDS = 0.0002
_CLEAN_SECONDS = 0.2
_WANTED_NANOSECONDS = 500_000_000
_FOLDERS = ("/dev/shm", "/tmp")
_TAKEN = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Something else has the name of the table: a file of another user, a link, a folder, a socket."""
_UNUSABLE = (errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EROFS, *_TAKEN)


class NodeBudget:
    """A pool's part in the budget of its node.

    Its owner sees to it that one thread at a time uses it.
    """

    def __init__(self, limit: int | None = None, path: str | None = None) -> None:
        """Enter a row into the table.

        Args:
            limit: Most bytes that all pools of the node may take, if this pool is the first. By
                default RLINF_TRANSFER_MEMORY, else half of what the machine or its cgroup has
                available now.
            path: File of the table; by default that of the node.

        Raises:
            ValueError: RLINF_TRANSFER_MEMORY is not a positive number of bytes.
            WaitTimeout: Another process keeps the table locked.
        """
        if limit is None:
            limit = given_limit()
        self._pid = os.getpid()
        self._cleaned = 0.0
        self._owed = 0
        self._fd, self._path = _open_first(_paths_of_node() if path is None else [path])
        try:
            table = np.asarray(map_file(self._fd, _TABLE_BYTES)).view(np.int64)
            self._rows = table[_FIRST_ROW:].reshape(_ROWS, _WIDTH)
            # Single numbers are read and written faster through this.
            self._words = memoryview(table)
            self._mine = self._enter(limit)
        except BaseException:
            os.close(self._fd)
            raise
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        forks.in_child(self)

    @property
    def limit(self) -> int:
        """Most bytes that all pools of the node may have taken."""
        return self._words[_LIMIT]

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
                self._clean(at_once=True)
        return nbytes <= self.most

    def take(self, nbytes: int) -> bool:
        """Take bytes; False if the node has not so many left. A pool always gets its share."""
        with _Lock(self._fd, self._path):
            self._settle()
            if self.used + nbytes > self.most:
                self._clean()
                if self._words[self._mine + _BYTES] + nbytes > self.share:
                    if self.used + nbytes + self._kept_for_others() > self.limit:
                        return False
            self._add(nbytes)
            return True

    def _kept_for_others(self) -> int:
        """Return what the other pools have left of their shares."""
        share = self.share
        taken = self._rows[self._rows[:, _PID] != 0, _BYTES]
        left = np.maximum(share - taken, 0).sum()
        return int(left) - max(share - self._words[self._mine + _BYTES], 0)

    def give_back(self, nbytes: int) -> None:
        """Give bytes back that were taken; where the table stays locked, at the next occasion."""
        self._owed += nbytes
        with (
            contextlib.suppress(WaitTimeout),
            _Lock(self._fd, self._path, _GIVE_BACK_SECONDS),
        ):
            self._settle()

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
        # Whoever keeps it locked must not keep this process: others will see that it is gone.
        with (
            contextlib.suppress(WaitTimeout),
            _Lock(self._fd, self._path, _GIVE_BACK_SECONDS),
        ):
            for word in range(_WIDTH):
                self._words[self._mine + word] = 0
            self._clean(at_once=True)
            if not self._words[_POOLS]:
                _remove(self._fd, self._path)
        os.close(self._fd)
        self._fd = -1

    def close_in_child(self, reason: str) -> None:
        """Let go of the file in a forked child, which could keep it locked for ever."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _settle(self) -> None:
        """Enter what could not be given back before."""
        if self._owed:
            self._add(-self._owed)
            self._owed = 0

    def _add(self, nbytes: int) -> None:
        self._words[self._mine + _BYTES] += nbytes
        self._words[_TOTAL] += nbytes

    def _enter(self, limit: int | None) -> int:
        """Take a free row, and set the limit if there is no other pool.

        Returns:
            Where the row begins.
        """
        self._clean(at_once=True)
        if not self._words[_POOLS] or not self._words[_LIMIT]:
            self._words[_LIMIT] = available_memory() // 2 if limit is None else limit
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
            if not _lives(pid, start):
                self._rows[row] = 0
        self._words[_TOTAL] = int(self._rows[:, _BYTES].sum())
        self._words[_POOLS] = int(np.count_nonzero(self._rows[:, _PID]))


class _Lock:
    """The lock of the table, for a `with` block."""

    __slots__ = ("_fd", "_path", "_seconds")

    def __init__(self, fd: int, path: str, seconds: float | None = None) -> None:
        self._fd = fd
        self._path = path
        self._seconds = _LOCK_SECONDS if seconds is None else seconds

    def __enter__(self) -> None:
        deadline = 0.0
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                # Held for microseconds, unless its holder was stopped just then.
                now = time.monotonic()
                deadline = deadline or now + self._seconds
                if now > deadline:
                    raise WaitTimeout(
                        f"the lock of {self._path}, by which processes share memory",
                        waiter=f"process {os.getpid()}",
                        seconds=self._seconds,
                        advice="A process that holds it was stopped: `lslocks` names it. Let it go "
                        "on (kill -CONT) or end it.",
                    ) from None
                time.sleep(_RETRY_SECONDS)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


def remove_unused_table() -> None:
    """Remove the table of this node if no living process has a pool."""
    if any(os.path.exists(path) for path in _paths_of_node()):
        NodeBudget().close()


def _paths_of_node() -> list[str]:
    """Return where the table of this node may be, the best place first."""
    try:
        # Pids mean the same to all who share a table.
        domain = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        domain = f"process-{os.getpid()}"
    paths = [f"{folder}/rlinf-memory-{os.getuid()}-{domain}" for folder in _FOLDERS]
    # Where one is, others use it.
    return sorted(paths, key=lambda path: not os.path.exists(path))


def _open_first(paths: list[str]) -> tuple[int, str]:
    """Open the table at the first place that has room; return it locked, and where it is.

    If others have taken all places, this process shares its table with nobody.
    """
    for path in paths:
        try:
            return _open_table(path), path
        except OSError as error:
            if error.errno not in _UNUSABLE:
                raise
            failure = error
    if failure.errno not in _TAKEN:
        raise failure
    alone = f"{paths[0]}-{secrets.token_hex(8)}"
    return _open_table(alone), alone


def _open_table(path: str) -> int:
    """Open a table, which is made if need be, and lock it."""
    while True:
        # Nobody else's file, wherever a link of that name may lead.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _check_owner(fd, path)
            _Lock(fd, path).__enter__()
            if os.fstat(fd).st_nlink:
                _allocate(fd, path)
                return fd
        except BaseException:
            os.close(fd)
            raise
        # Its last user has just removed it.
        os.close(fd)


def _check_owner(fd: int, path: str) -> None:
    """Check that an open file is one that this user has made here.

    Whoever else owned it could keep its lock, and a file with a second name is something else.

    Raises:
        PermissionError: it is not.
    """
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise PermissionError(errno.EACCES, "another user has made this file", path)


def _allocate(fd: int, path: str) -> None:
    """Give the table all its memory: where there is none, touching it would end the process."""
    try:
        os.posix_fallocate(fd, 0, _TABLE_BYTES)
    except OSError as error:
        if os.fstat(fd).st_size < _TABLE_BYTES:
            _remove(fd, path)
        raise OSError(error.errno, f"{error.strerror}: {_TABLE_BYTES >> 10} KiB", path) from error


def _remove(fd: int, path: str) -> None:
    """Remove the table, unless somebody has, and perhaps made another one."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            os.unlink(path)


def _started(pid: int) -> int:
    """Return the start time of a process, which later ones of its pid do not have; 0 if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _lives(pid: int, start: int) -> bool:
    """Return whether a process is still there; True also if that cannot be seen."""
    try:
        return _started(pid) == start
    except OSError:  # This process has too many files open, for instance.
        return True
