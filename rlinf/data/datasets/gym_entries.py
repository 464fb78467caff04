"""Entries of reasoning-gym tasks, generated ahead in processes and kept on disk if they are slow.

An entry is a function of its key alone, so it does not matter who generates it, nor when.
"""

from __future__ import annotations

import ast
import json
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.config.suggest import did_you_mean, listed
from rlinf.utils.extras import install_hint
from rlinf.utils.processes.pool import Outcome, ProcessPool, ProcessSpec

SLOW_SECONDS = 0.005
"""Entries that take longer than this are kept on disk."""

GENERATE_SECONDS = 300.0


class EntryKey(NamedTuple):
    """What an entry follows from.

    Attributes:
        task: name of the task.
        config: its settings as JSON.
        seed: of the task.
        size: of the task; some tasks depend on it.
        index: place of the entry.
    """

    task: str
    config: str
    seed: int
    size: int
    index: int


class EntrySource:
    """Gives entries by key.

    Args:
        num_workers: processes that generate; 0 generates in this one.
        cache_dir: folder for slow entries; None is `~/.cache/rlinf`.
    """

    def __init__(self, num_workers: int, cache_dir: str | None):
        self._num_workers = num_workers
        self._cache = EntryCache(cache_dir)
        self._pool: ProcessPool | None = None
        self._own: Callable[..., dict[str, Any]] | None = None
        self._pending: dict[EntryKey, Future[Outcome]] = {}

    def check_task(self, task: str, config: str) -> None:
        """Make sure that a task exists and take its settings.

        Raises:
            ValueError: It does not; the message has the near and the known names.
        """
        found = self._told(self._generate(EntryKey(task, config, 0, 1, -1)).result(), task)
        if "unknown" in found:
            hint = did_you_mean(task, found["unknown"])
            raise ValueError(
                f"data.tasks: reasoning-gym has no task '{task}'; {hint} "
                f"known: {listed(found['unknown'])}"
            )
        if "refused" in found:
            raise ValueError(
                f"data.tasks: the task '{task}' refuses its config: {found['refused']}"
            )

    def prefetch(self, keys: Iterable[EntryKey]) -> None:
        """Begin to generate entries, in this order, unless they are there."""
        if not self._num_workers:
            return
        for key in keys:
            if key not in self._pending and self._cache.get(key) is None:
                self._pending[key] = self._generate(key)

    def get(self, key: EntryKey) -> dict[str, Any] | None:
        """Return an entry; None if the task cannot make this one.

        Raises:
            RuntimeError: A generating process failed.
        """
        pending = self._pending.pop(key, None)
        if pending is None:
            kept = self._cache.get(key)
            if kept is not None:
                return ast.literal_eval(kept)
            pending = self._generate(key)
        found = self._told(pending.result(), key.task)
        if "impossible" in found:
            return None
        if found["entry"] is None:
            # It holds objects that are not plain data.
            return _dataset(key.task, key.config, key.seed, key.size)[key.index]
        return ast.literal_eval(found["entry"])

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()
        self._cache.close()

    def _generate(self, key: EntryKey) -> Future[Outcome]:
        if self._num_workers:
            if self._pool is None:
                process = ProcessSpec("rlinf.data.datasets.gym_entries:make_generator")
                self._pool = ProcessPool(
                    process, processes=self._num_workers, timeout=GENERATE_SECONDS
                )
            future = self._pool.submit(*key)
        else:
            if self._own is None:
                self._own = make_generator()
            future = Future()
            future.set_result(Outcome("ok", self._own(*key)))
        # Kept when it is made, not when it is used: a run that is killed loses nothing.
        future.add_done_callback(lambda done: self._keep(key, done))
        return future

    def _keep(self, key: EntryKey, done: Future[Outcome]) -> None:
        if done.cancelled() or done.result().status != "ok":
            return
        found = done.result().value
        if found.get("entry") is not None and found["seconds"] > SLOW_SECONDS:
            self._cache.put(key, found["entry"])

    def _told(self, outcome: Outcome, task: str) -> dict[str, Any]:
        if outcome.status != "ok":
            raise RuntimeError(
                f"reasoning-gym task '{task}': {outcome.status} while an entry was generated: "
                f"{outcome.message}"
            )
        return outcome.value


class EntryCache:
    """Entries in a file of SQLite, as Python literals.

    A cache that cannot be used is said once and costs nothing but time.

    Args:
        folder: where the file is; None is `~/.cache/rlinf`.
    """

    def __init__(self, folder: str | None):
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self._folder = Path(folder or f"{home}/rlinf").expanduser()
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None
        self._broken = False

    def get(self, key: EntryKey) -> str | None:
        """Return the text of an entry; None if it is not there."""
        rows = self._do("SELECT entry FROM entries WHERE key = ?", repr(tuple(key)))
        return rows[0][0] if rows else None

    def put(self, key: EntryKey, entry: str) -> None:
        """Keep the text of an entry."""
        self._do("INSERT OR IGNORE INTO entries VALUES (?, ?)", repr(tuple(key)), entry)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._broken = True
            if self._file is not None:
                self._file.close()

    def _do(self, statement: str, *values: str) -> list[Any]:
        with self._lock:
            if self._broken:
                return []
            try:
                if self._file is None:
                    self._file = self._open()
                return self._file.execute(statement, values).fetchall()
            except (sqlite3.Error, OSError) as error:
                self._broken = True
                warnings.warn(
                    f"prompts are not kept on disk, in {self._folder}: {error}; name another "
                    "folder with data.cache_dir",
                    stacklevel=2,
                )
                return []

    def _open(self) -> sqlite3.Connection:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"reasoning_gym-{metadata.version('reasoning-gym')}.sqlite"
        file = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        # What a power cut takes is generated again.
        file.execute("PRAGMA synchronous = OFF")
        file.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, entry TEXT)")
        return file


def make_generator() -> Callable[..., dict[str, Any]]:
    """Make the function that generates entries; runs in the processes of the pool.

    Raises:
        ValueError: The package is not installed.
    """
    try:
        import reasoning_gym  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"data.type reasoning_gym needs the package reasoning-gym: {install_hint('reasoning')}"
        ) from error
    return generate


def generate(task: str, config: str, seed: int, size: int, index: int) -> dict[str, Any]:
    """Generate an entry.

    Args:
        task: As in `EntryKey`.
        config: As in `EntryKey`.
        seed: As in `EntryKey`.
        size: As in `EntryKey`.
        index: As in `EntryKey`; -1 only checks the task.

    Returns:
        `entry`, a Python literal, or None if it is none, with the `seconds` that it took;
        `impossible` if the task gives up on this one; `unknown` with all names, or `refused`, if
        there is no such task or config.
    """
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        return {"unknown": sorted(DATASETS)}
    begin = time.monotonic()
    try:
        dataset = _dataset(task, config, seed, size)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    if index < 0:
        return {}
    try:
        entry = dataset[index]
    except ValueError as error:
        return {"impossible": str(error)}
    text = repr(entry)
    try:
        plain = ast.literal_eval(text) == entry
    except ValueError:
        plain = False
    return {"entry": text if plain else None, "seconds": time.monotonic() - begin}


@lru_cache(maxsize=64)
def _dataset(task: str, config: str, seed: int, size: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, **json.loads(config), seed=seed, size=size)
