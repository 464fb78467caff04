"""Rows by serial number, in memory or in memory-mapped files, oldest dropped first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.replay.fields import (
    Columns,
    Layout,
    ReplayDamaged,
    allocate_segment,
    checksum_of,
    map_segment,
    naming,
    row_bytes,
    write_segment,
)


@dataclass(frozen=True)
class SegmentFile:
    """A file of rows that never changes.

    Attributes:
        path: where.
        begin: serial of its first row.
        rows: how many.
        checksum: of the file.
    """

    path: Path
    begin: int
    rows: int
    checksum: int

    @property
    def end(self) -> int:
        """Serial after its last row."""
        return self.begin + self.rows

    def entry(self) -> list[Any]:
        """Return what a checkpoint says of it, plain data."""
        return [self.path.name, self.begin, self.rows, self.checksum]

    @classmethod
    def of_entry(cls, folder: Path, entry: list[Any]) -> SegmentFile:
        """Return the file that a checkpoint in a folder names."""
        name, begin, rows, checksum = entry
        return cls(folder / name, begin, rows, checksum)

    def verify(self) -> None:
        """Raise `ReplayDamaged` if it is not what was written."""
        if not self.path.exists():
            raise ReplayDamaged(f"{self.path} is missing; use another copy of the buffer")
        if checksum_of(self.path) != self.checksum:
            raise ReplayDamaged(
                f"{self.path} is not what was written; use another copy of the buffer"
            )


class Table:
    """Rows `begin` to `end` of some columns.

    Args:
        name: what its files begin with.
        layout: its columns.
        segment_rows: rows of a segment; segment k has the serials from `k * segment_rows`.
        folder: for segment files; None keeps none.

    Attributes:
        begin: serial of the oldest row.
        end: serial of the next row.
    """

    def __init__(self, name: str, layout: Layout, segment_rows: int, folder: Path | None) -> None:
        self.name = name
        self.layout = layout
        self.segment_rows = segment_rows
        self.folder = folder
        self.begin = self.end = 0
        self._sealed: dict[int, SegmentFile] = {}

    def reserve(self, rows: int) -> None:
        """Take room on the disk, so that so many rows can be added without fail."""

    def append(self, columns: Columns) -> int:
        """Add rows; return the serial of the first."""
        raise NotImplementedError

    def gather(self, name: str, serials: np.ndarray) -> np.ndarray:
        """Return a copy of some rows of a column, `[len(serials), ...]`."""
        raise NotImplementedError

    def drop_before(self, serial: int) -> None:
        """Drop the rows with lower serials, and the files that have no others."""
        self.begin = max(self.begin, min(serial, self.end))
        for segment in [s for s, file in self._sealed.items() if file.end <= self.begin]:
            self._sealed.pop(segment).path.unlink(missing_ok=True)

    def rows(self, begin: int, end: int) -> Columns:
        """Return a copy of consecutive rows."""
        serials = np.arange(begin, end)
        return {name: self.gather(name, serials) for name in self.layout}

    def seal(self) -> None:
        """Write all full segments that have no file yet; needs a folder."""

    def close(self) -> None:
        """Let go of memory and files."""
        self._sealed.clear()

    # -- checkpoints ----------------------------------------------------------------------------

    def snapshot(self, target: Path) -> Callable[[], list[list[Any]]]:
        """Fix the rows of this moment for a checkpoint.

        Full segments are linked into the target; other rows are copied in memory.

        Args:
            target: folder of the checkpoint, which is there.

        Returns:
            What writes the copied rows and returns an entry per file of the target.
        """
        if self.folder is not None:
            self.seal()
        files = [self._sealed[k] for k in sorted(self._sealed)]
        linked = []
        for file in files:
            link_file(file.path, target / file.path.name)
            linked.append(file.entry())
        begin = max([self.begin, *(file.end for file in files)])
        pieces = [(a, self.rows(a, b)) for a, b in self._pieces(begin, self.end)]

        def write() -> list[list[Any]]:
            written = [self._write(target, first, columns).entry() for first, columns in pieces]
            return linked + written

        return write

    def load(self, files: list[SegmentFile], begin: int, end: int) -> None:
        """Take the rows of a checkpoint into an empty table."""
        raise NotImplementedError

    def _pieces(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Cut a range of serials where segments end."""
        while begin < end:
            stop = min(end, (begin // self.segment_rows + 1) * self.segment_rows)
            yield begin, stop
            begin = stop

    def _write(self, folder: Path, begin: int, columns: Columns) -> SegmentFile:
        rows = len(next(iter(columns.values())))
        path = folder / self._file_name(begin, rows)
        return SegmentFile(path, begin, rows, write_segment(path, self.layout, columns))

    def _file_name(self, begin: int, rows: int) -> str:
        return f"{self.name}_{begin:012d}_{rows}.safetensors"

    def _adopt(self, file: SegmentFile) -> SegmentFile:
        """Link a full segment of a checkpoint into the own folder."""
        path = self.folder / file.path.name
        link_file(file.path, path)
        own = SegmentFile(path, file.begin, file.rows, file.checksum)
        self._sealed[file.begin // self.segment_rows] = own
        return own

    def _is_full(self, file: SegmentFile) -> bool:
        return file.end % self.segment_rows == 0


class MemoryTable(Table):
    """Rows in memory, one ring per column.

    Args:
        name: see `Table`.
        layout: see `Table`.
        segment_rows: see `Table`.
        folder: see `Table`.
        slots: rows that there is memory for.
        grows: make room for more rows when the ring is full; else dropping in time is up to the
            caller.
    """

    def __init__(
        self,
        name: str,
        layout: Layout,
        segment_rows: int,
        folder: Path | None,
        *,
        slots: int,
        grows: bool = False,
    ) -> None:
        super().__init__(name, layout, segment_rows, folder)
        self._slots = slots
        self._grows = grows
        self._next_segment = 0
        self._rings = {n: np.empty((slots, *f.shape), f.dtype) for n, f in layout.items()}

    def append(self, columns: Columns) -> int:
        """See `Table`."""
        first, rows = self.end, len(next(iter(columns.values())))
        self._make_room(rows)
        self.end += rows
        self._store(first, columns)
        return first

    def gather(self, name: str, serials: np.ndarray) -> np.ndarray:
        """See `Table`."""
        return self._rings[name].take(serials % self._slots, 0)

    def seal(self) -> None:
        """See `Table`."""
        full = self.end // self.segment_rows
        for segment in range(max(self._next_segment, self.begin // self.segment_rows), full):
            begin = max(self.begin, segment * self.segment_rows)
            rows = self.rows(begin, (segment + 1) * self.segment_rows)
            self._sealed[segment] = self._write(self.folder, begin, rows)
            self._next_segment = segment + 1

    def load(self, files: list[SegmentFile], begin: int, end: int) -> None:
        """See `Table`."""
        self.begin = begin
        self.end = begin
        self._make_room(end - begin)
        self.end = end
        for file in files:
            columns = map_segment(file.path, self.layout, file.rows)
            skip = max(0, begin - file.begin)
            self._store(file.begin + skip, {name: col[skip:] for name, col in columns.items()})
            if self.folder is not None and self._is_full(file):
                self._adopt(file)
                self._next_segment = file.end // self.segment_rows

    def close(self) -> None:
        """See `Table`."""
        super().close()
        self._rings = {}

    def _store(self, first: int, columns: Columns) -> None:
        for name, values in columns.items():
            begin = first % self._slots
            head = min(len(values), self._slots - begin)
            ring = self._rings[name]
            ring[begin : begin + head] = values[:head]
            ring[: len(values) - head] = values[head:]

    def _make_room(self, rows: int) -> None:
        needed = self.end - self.begin + rows
        if needed <= self._slots:
            return
        assert self._grows, f"{self.name} has {self._slots} slots, {needed} rows"
        kept = self.rows(self.begin, self.end)
        self._slots = max(needed, 2 * self._slots)
        self._rings = {
            n: np.empty((self._slots, *f.shape), f.dtype) for n, f in self.layout.items()
        }
        self._store(self.begin, kept)


class MappedTable(Table):
    """Rows in files that are mapped into memory; needs a folder, except to read."""

    def __init__(self, name: str, layout: Layout, segment_rows: int, folder: Path | None) -> None:
        super().__init__(name, layout, segment_rows, folder)
        self._maps: dict[int, tuple[int, Columns]] = {}

    def reserve(self, rows: int) -> None:
        """See `Table`."""
        for begin, _ in self._pieces(self.end, self.end + rows):
            segment = begin // self.segment_rows
            if segment not in self._maps:
                self._maps[segment] = (begin, self._allocate(begin, segment))

    def append(self, columns: Columns) -> int:
        """See `Table`."""
        first, done = self.end, 0
        rows = len(next(iter(columns.values())))
        self.reserve(rows)
        for begin, end in self._pieces(first, first + rows):
            segment = begin // self.segment_rows
            base, mapped = self._maps[segment]
            for name, values in columns.items():
                mapped[name][begin - base : end - base] = values[done : done + end - begin]
            done += end - begin
            self.end = end
            if end % self.segment_rows == 0:
                self._seal(segment)
        return first

    def gather(self, name: str, serials: np.ndarray) -> np.ndarray:
        """See `Table`."""
        field = self.layout[name]
        out = np.empty((len(serials), *field.shape), field.dtype)
        segments = serials // self.segment_rows
        by_segment = np.argsort(segments, kind="stable")
        numbers, begins = np.unique(segments[by_segment], return_index=True)
        for number, places in zip(numbers, np.split(by_segment, begins[1:]), strict=False):
            base, mapped = self._maps[int(number)]
            out[places] = mapped[name][serials[places] - base]
        return out

    def drop_before(self, serial: int) -> None:
        """See `Table`."""
        super().drop_before(serial)
        for segment in [s for s in self._maps if (s + 1) * self.segment_rows <= self.begin]:
            del self._maps[segment]

    def load(self, files: list[SegmentFile], begin: int, end: int) -> None:
        """See `Table`."""
        self.begin = self.end = begin
        for file in files:
            if self._is_full(file):
                own = self._adopt(file)
                mapped = map_segment(own.path, self.layout, own.rows)
                self._maps[file.begin // self.segment_rows] = (file.begin, mapped)
                self.end = file.end
            else:
                columns = map_segment(file.path, self.layout, file.rows)
                skip = max(0, begin - file.begin)
                self.append({name: column[skip:] for name, column in columns.items()})

    def view(self, files: list[SegmentFile], begin: int, end: int) -> None:
        """Show the rows of a checkpoint where they lie; nothing can be added."""
        self.begin, self.end = begin, end
        for file in files:
            mapped = map_segment(file.path, self.layout, file.rows)
            self._maps[file.begin // self.segment_rows] = (file.begin, mapped)

    def close(self) -> None:
        """See `Table`."""
        super().close()
        self._maps.clear()

    def _allocate(self, begin: int, segment: int) -> Columns:
        rows = (segment + 1) * self.segment_rows - begin
        path = self.folder / self._file_name(begin, rows)
        return allocate_segment(path, self.layout, rows)

    def _seal(self, segment: int) -> None:
        """Write a full segment to the disk; from here on it is only read."""
        base, mapped = self._maps[segment]
        rows = (segment + 1) * self.segment_rows - base
        path = self.folder / self._file_name(base, rows)
        with naming(path):
            for column in mapped.values():
                column.flush()
        self._maps[segment] = (base, map_segment(path, self.layout, rows))
        self._sealed[segment] = SegmentFile(path, base, rows, checksum_of(path))


def segment_rows_of(layout: Layout, segment_bytes: int) -> int:
    """Return how many rows make a segment of about so many bytes."""
    return max(1, segment_bytes // max(1, row_bytes(layout)))


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the other name is on another disk."""
    if not source.exists():
        raise ReplayDamaged(f"{source} is missing; use another copy of the buffer")
    target.unlink(missing_ok=True)
    with naming(target):
        try:
            os.link(source, target)
        except OSError:
            # Other disks, and file systems without links; a full disk fails here again.
            shutil.copyfile(source, target)
