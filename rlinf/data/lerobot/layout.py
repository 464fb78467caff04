"""Names of the files of a dataset, where its folder is, and how one file replaces another."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlinf.data.lerobot.errors import DatasetError

VERSION = "v3.0"
READABLE = ("v3.0", "v2.1")

INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"

V21_EPISODES = "meta/episodes.jsonl"
V21_TASKS = "meta/tasks.jsonl"
V21_STATS = "meta/episodes_stats.jsonl"

STAGING = ".staging"
"""Folder for files that are not finished. A reader never looks into it."""

Place = tuple[int, int]
"""Index of the chunk folder, and of the file within it."""


def next_place(place: Place, chunks_size: int) -> Place:
    """Return the file after a file, in the next folder when this one holds `chunks_size`."""
    chunk, file = place
    return (chunk + 1, 0) if file + 1 >= chunks_size else (chunk, file + 1)


def find_root(source: str | Path) -> Path:
    """Return the folder of a dataset that is on this machine.

    Args:
        source: The folder itself, a folder of the hub's cache (with `refs` and `snapshots`), or a
            name `owner/dataset` that was downloaded before: into `HF_LEROBOT_HOME`, or the cache
            of the hub (`HF_HUB_CACHE`).

    Raises:
        DatasetError: There is none. Nothing is downloaded.
    """
    looked = []
    for folder in _candidates(Path(source).expanduser(), str(source)):
        looked.append(str(folder))
        if (folder / INFO).is_file():
            return folder
        snapshot = _snapshot(folder)
        if snapshot is not None:
            return snapshot
    raise DatasetError(
        f"{source} is not a LeRobot dataset: no {INFO} in {', '.join(looked)}. Give a folder that "
        "has it; a dataset of the hub is downloaded with `hf download OWNER/NAME --repo-type "
        "dataset --local-dir FOLDER`"
    )


def _candidates(path: Path, name: str) -> Iterator[Path]:
    yield path
    if name.count("/") == 1 and not name.startswith(("/", ".", "~")):
        cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        yield Path(os.environ.get("HF_LEROBOT_HOME", cache / "lerobot")) / name
        hub = Path(os.environ.get("HF_HUB_CACHE", cache / "hub"))
        yield hub / f"datasets--{name.replace('/', '--')}"


def _snapshot(folder: Path) -> Path | None:
    """Return the snapshot of the branch main, or the only one, of a folder of the hub's cache."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return None
    ref = folder / "refs" / "main"
    if ref.is_file() and (snapshots / ref.read_text().strip() / INFO).is_file():
        return snapshots / ref.read_text().strip()
    found = [path for path in sorted(snapshots.iterdir()) if (path / INFO).is_file()]
    if len(found) > 1:
        raise DatasetError(
            f"{folder} has {len(found)} snapshots and none is main: give one of "
            f"{', '.join(map(str, found))}"
        )
    return found[0] if found else None


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        DatasetError: It is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing") from error
    except ValueError as error:
        raise DatasetError(f"{path} is not JSON: {error}") from error


def read_json_lines(path: Path) -> list[Any]:
    """Return what the lines of a JSONL file hold.

    Raises:
        DatasetError: It is missing, or a line is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise DatasetError(f"{path}, line {number} is not JSON: {error}") from error
    return rows


def sync(path: Path) -> None:
    """Bring the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileSet:
    """New versions of several files, which are written first and put in place together.

    Nothing of the dataset changes before `publish`: a full disk or a kill until then leaves files
    in the staging folder only.
    """

    def __init__(self, root: Path) -> None:
        """Start without files.

        Args:
            root: Folder of the dataset.
        """
        self._root, self._staged = root, {}

    @contextmanager
    def new(self, relative: str) -> Iterator[Path]:
        """Give a path to write a file to; it is on disk when the block ends.

        Args:
            relative: Where `publish` puts it, seen from the root.
        """
        path = self._root / STAGING / f"{len(self._staged):03d}-{Path(relative).name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
        sync(path)
        self._staged[relative] = path

    def add_json(self, relative: str, value: Any) -> None:
        """Write a value as JSON."""
        with self.new(relative) as path:
            text = json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False)
            path.write_text(text, encoding="utf-8")

    def publish(self) -> None:
        """Put all files in place, in the order in which they were added."""
        for relative, path in self._staged.items():
            target = self._root / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
            sync(target.parent)
        self._staged = {}

    def discard(self) -> None:
        """Delete what was not published."""
        for path in self._staged.values():
            path.unlink(missing_ok=True)
        self._staged = {}


def clear_staging(root: Path) -> None:
    """Delete files that a writer left unfinished."""
    shutil.rmtree(root / STAGING, ignore_errors=True)
