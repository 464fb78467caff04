"""Brings the files of a run together on the driver's node, and those to read to the other nodes.

Files travel in chunks, as values of small tasks on the nodes. Nodes that share the run's folders
have nothing to give, and are given nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlinf.scheduler.places import make_own_folder, mark_of, staged, staging
from rlinf.scheduler.topology.node import NodeInfo

CHUNK = 16 << 20
_AHEAD = 3
"""Chunks of a file that are under way at once."""
_TASK_SECONDS = 120.0
"""How long a node may take to answer, for one chunk."""
_LOOK_SECONDS = 0.5
FOLLOW_SECONDS = 5.0
"""How often the logs of other nodes are taken."""
_OF_PROCESS = (".record",)
"""Files that only the node of their process reads."""


class Session(Protocol):
    """The connection to Ray; see `RaySession`."""

    def start_on(
        self, ray_id: str, function: Callable[..., Any], *args: Any
    ) -> Callable[[float], Any]:
        """Start a function on a node; call what it returns, with a deadline, for the value."""


class _File(NamedTuple):
    """A file of another node.

    Attributes:
        path: where it belongs.
        size: its bytes.
    """

    path: str
    size: int


class RunFiles:
    """The files of a run, wherever its processes write them.

    Args:
        session: the connection to Ray.
        nodes: the other nodes of the cluster.
        run_id: the run.
    """

    def __init__(self, session: Session, nodes: Sequence[NodeInfo], run_id: str):
        self._session = session
        self._nodes = list(nodes)
        self._run_id = run_id
        self._marks: list[Path] = []
        self._taken: dict[tuple[str, str], int] = {}
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        self._following: _Follower | None = None

    def mark(self, folder: str | Path) -> None:
        """Make a folder one of the run's, so that other nodes can tell whether they share it."""
        if self._nodes:
            mark = Path(folder) / mark_of(self._run_id)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            self._marks.append(mark)

    def collect(self, folder: str | Path) -> None:
        """Take what other nodes have written under a folder of the run, and remove it there.

        Args:
            folder: an absolute path.

        Raises:
            OSError: it cannot be written here, or a node could not give all of it.
        """
        with self._lock:
            for node, files in self._ask(_list_files, str(folder), self._run_id):
                for file in files:
                    self._copy(node, file, 0)
                if files:
                    self._on(node, _drop, str(folder), self._run_id)

    def follow(self, folder: str | Path) -> None:
        """Take what other nodes add to their files under a folder, every few seconds."""
        if self._nodes:
            self._following = _Follower(lambda: self._take_new(folder, _TASK_SECONDS))

    def _take_new(self, folder: str | Path, seconds: float) -> None:
        """Take what other nodes have added to their files under a folder since the last time.

        A node that cannot be asked is told of once, and not asked again.
        """
        with self._lock:
            started = {
                node.node_rank: self._session.start_on(
                    node.ray_id, _list_files, str(folder), self._run_id
                )
                for node in self._nodes
                if node.node_rank not in self._lost
            }
            for node in self._nodes:
                if node.node_rank in started:
                    try:
                        files = self._result(node, started[node.node_rank], seconds)
                        self._take_from(node, files)
                    except Exception as error:
                        self._lose(node, folder, error)

    def _take_from(self, node: NodeInfo, files: list[_File]) -> None:
        for file in files:
            key = (node.ray_id, file.path)
            have = self._taken.get(key, 0)
            if not file.path.endswith(_OF_PROCESS) and file.size != have:
                self._copy(node, file, have if file.size > have else 0)
                self._taken[key] = file.size

    def _lose(self, node: NodeInfo, folder: str | Path, error: Exception) -> None:
        if node.node_rank in self._lost:
            # It is told of elsewhere.
            return
        self._lost.add(node.node_rank)
        said = str(error).strip().partition("\n")[0]
        print(
            f"warning: what node {node.node_rank} ({node.node_ip}) writes under {folder} does not "
            f"come here any more ({type(error).__name__}: {said}); it is in "
            f"{staged(folder, self._run_id)} there",
            file=sys.stderr,
            flush=True,
        )

    def lose(self, node_rank: int) -> None:
        """Ask a node no more, since it cannot be reached."""
        self._lost.add(node_rank)

    def deliver(self, folder: str | Path, witness: str) -> None:
        """Give a folder to the nodes that do not have it where it is here.

        Args:
            folder: an absolute path; its files do not change meanwhile.
            witness: name of a file in it that tells it from any other folder.

        Raises:
            OSError: a node could not take it.
        """
        if not self._nodes:
            return
        folder = Path(folder)
        digest = hashlib.sha256((folder / witness).read_bytes()).hexdigest()
        with self._lock:
            has = self._ask(_has, str(folder), witness, digest)
            lacking = [node for node, there in has if not there]
            for path in sorted(p for p in folder.rglob("*") if p.is_file()) if lacking else ():
                self._give(lacking, path)

    def drop(self, folder: str | Path) -> None:
        """Remove what was delivered."""
        with self._lock:
            self._ask(_drop, str(folder), self._run_id)

    def end(self, folder: str | Path, seconds: float) -> None:
        """Take the rest under a folder, remove what nodes have kept, and take the marks away.

        Args:
            folder: an absolute path.
            seconds: how long a node may take to answer.
        """
        if self._following is not None:
            self._following.stop()
        self._take_new(folder, seconds)
        for node in self._nodes:
            # What could not be taken stays where it is.
            if node.node_rank not in self._lost:
                with contextlib.suppress(Exception):
                    started = self._session.start_on(node.ray_id, _remove_staging, self._run_id)
                    self._result(node, started, seconds)
        for mark in self._marks:
            mark.unlink(missing_ok=True)

    # -- one file -------------------------------------------------------------------------------

    def _copy(self, node: NodeInfo, file: _File, begin: int) -> None:
        """Copy a file from a node, from an offset on."""
        place = Path(file.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | (0 if begin else os.O_TRUNC)
        with os.fdopen(os.open(place, flags, 0o644), "wb") as target:
            target.seek(begin)
            for data in self._chunks(node, file, begin):
                target.write(data)
            target.flush()
            os.fsync(target.fileno())

    def _chunks(self, node: NodeInfo, file: _File, begin: int) -> Iterator[bytes]:
        started: deque[tuple[int, Callable[[float], Any]]] = deque()
        offsets = iter(range(begin, file.size, CHUNK))
        while True:
            while len(started) < _AHEAD and (offset := next(offsets, None)) is not None:
                size = min(CHUNK, file.size - offset)
                args = (file.path, self._run_id, offset, size)
                started.append((size, self._session.start_on(node.ray_id, _read, *args)))
            if not started:
                return
            size, result = started.popleft()
            data = self._result(node, result)
            if len(data) != size:
                raise OSError(
                    f"{file.path} on node {node.node_rank} ({node.node_ip}) became shorter while "
                    "it was copied"
                )
            yield data

    def _give(self, nodes: list[NodeInfo], path: Path) -> None:
        """Copy a file to nodes."""
        with path.open("rb") as source:
            offset, started = 0, deque[tuple[NodeInfo, Callable[[float], Any]]]()
            while (data := source.read(CHUNK)) or offset == 0:
                for node in nodes:
                    args = (str(path), self._run_id, offset, data)
                    started.append((node, self._session.start_on(node.ray_id, _write, *args)))
                while len(started) > _AHEAD * len(nodes):
                    self._result(*started.popleft())
                offset += len(data)
                if not data:
                    break
            while started:
                self._result(*started.popleft())

    # -- nodes ----------------------------------------------------------------------------------

    def _on(self, node: NodeInfo, function: Callable[..., Any], *args: Any) -> Any:
        return self._result(node, self._session.start_on(node.ray_id, function, *args))

    def _ask(self, function: Callable[..., Any], *args: Any) -> list[tuple[NodeInfo, Any]]:
        """Ask all nodes at the same time."""
        started = [(n, self._session.start_on(n.ray_id, function, *args)) for n in self._nodes]
        return [(node, self._result(node, result)) for node, result in started]

    def _result(
        self, node: NodeInfo, result: Callable[[float], Any], seconds: float = _TASK_SECONDS
    ) -> Any:
        """Wait for the value of a task; at most until its node is lost."""
        end = time.monotonic() + seconds
        while True:
            if node.node_rank in self._lost:
                raise OSError(f"node {node.node_rank} ({node.node_ip}) is lost")
            try:
                return result(min(_LOOK_SECONDS, max(0.0, end - time.monotonic())))
            except TimeoutError:
                if time.monotonic() >= end:
                    raise


class _Follower:
    """Does something every few seconds."""

    def __init__(self, look: Callable[[], None]):
        self._look = look
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlinf-files", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(FOLLOW_SECONDS):
            self._look()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


# -- on the nodes ----------------------------------------------------------------------------------


def _list_files(folder: str, run_id: str) -> list[_File]:
    """Return the files that this node keeps for a folder of the run."""
    root = staging(run_id)
    found = sorted(p for p in staged(folder, run_id).rglob("*") if p.is_file())
    return [_File(f"/{path.relative_to(root)}", path.stat().st_size) for path in found]


def _read(path: str, run_id: str, offset: int, size: int) -> bytes:
    with staged(path, run_id).open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _write(path: str, run_id: str, offset: int, data: bytes) -> None:
    make_own_folder()
    place = staged(path, run_id)
    place.parent.mkdir(parents=True, exist_ok=True)
    # Chunks may come in any order.
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.seek(offset)
        file.write(data)


def _has(folder: str, witness: str, digest: str) -> bool:
    """Return whether this node sees the very folder that the driver sees."""
    try:
        return hashlib.sha256((Path(folder) / witness).read_bytes()).hexdigest() == digest
    except OSError:
        return False


def _drop(folder: str, run_id: str) -> None:
    shutil.rmtree(staged(folder, run_id), ignore_errors=True)


def _remove_staging(run_id: str) -> None:
    shutil.rmtree(staging(run_id), ignore_errors=True)
