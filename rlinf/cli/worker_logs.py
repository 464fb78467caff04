"""The logs of a run's workers: finds the files, reads their entries, merges them by time."""

from __future__ import annotations

import datetime
import fnmatch
import heapq
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_HEAD = re.compile(r"\[(\w+) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) [^\]]*\]\[[^\]]*\] ")
_AGO = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class Entry:
    """One message, with all its lines.

    Attributes:
        time: local time, `YYYY-MM-DD HH:MM:SS.mmm`; sorts as it reads.
        level: one of `LEVELS`.
        worker: `group:rank`.
        text: the lines as they are in the file, without the last line break.
    """

    time: str
    level: str
    worker: str
    text: str

    @property
    def message(self) -> str:
        """The text without what stands in brackets before it."""
        head = _HEAD.match(self.text)
        return self.text[head.end() :] if head else self.text


@dataclass(frozen=True)
class Selection:
    """Which entries are wanted.

    Attributes:
        level: the lowest.
        since: the earliest, as `Entry.time`; empty for all.
    """

    level: str = "DEBUG"
    since: str = ""

    def takes(self, entry: Entry) -> bool:
        """Return whether an entry is wanted; levels that are not known are."""
        wanted = entry.level not in LEVELS or LEVELS.index(entry.level) >= LEVELS.index(self.level)
        return wanted and entry.time >= self.since


def find_logs(folder: str | Path, worker: str | None = None) -> dict[str, Path]:
    """Return the log of each worker, by its name.

    Args:
        folder: of a run, or `cluster.log_dir` of a program.
        worker: `EnvGroup:0`, a whole group as `EnvGroup`, or a pattern as `Env*`; all by default.

    Raises:
        ValueError: there are no logs, or no such worker.
    """
    folder = Path(folder)
    root = folder / "workers" if (folder / "workers").is_dir() else folder
    found = {_worker_name(path): path for path in sorted(root.glob("*/rank_*.log"))}
    if not found:
        raise ValueError(
            f"{folder} has no logs of workers: is it the folder of a run (`rlinf train` prints it "
            "at its end)?"
        )
    if worker is None:
        return found
    chosen = {
        name: path
        for name, path in found.items()
        if worker == name.partition(":")[0] or fnmatch.fnmatchcase(name, worker)
    }
    if not chosen:
        raise ValueError(f"there is no worker {worker!r}; there are: {', '.join(found)}")
    return chosen


def _worker_name(path: Path) -> str:
    rank = path.stem.removeprefix("rank_").replace("_", ":")
    return f"{path.parent.name}:{rank}"


class LogFile:
    """One worker's log, read as far as it has been written.

    Args:
        worker: its name.
        path: the file.
    """

    def __init__(self, worker: str, path: Path):
        self._worker = worker
        self._path = path
        self._position = 0
        self._time = ""

    def new_entries(self) -> Iterator[Entry]:
        """What was written since the last call, in order; a line that is not whole waits."""
        lines: list[str] = []
        for line in self._new_lines():
            if lines and _HEAD.match(line):
                yield self._entry(lines)
                lines = []
            lines.append(line)
        if lines:
            yield self._entry(lines)

    def skip_to_last(self, size: int) -> None:
        """Leave out all but the last bytes, to the next whole line."""
        with open(self._path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            if end > size:
                file.seek(end - size - 1)
                file.readline()
                self._position = file.tell()

    def _new_lines(self) -> Iterator[str]:
        with open(self._path, "rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")

    def _entry(self, lines: list[str]) -> Entry:
        head = _HEAD.match(lines[0])
        # A continuation that came late belongs to the time of what it continues.
        level, self._time = head.groups() if head else ("INFO", self._time)
        return Entry(self._time, level, self._worker, "\n".join(lines))


def merged(logs: Iterable[LogFile], selection: Selection) -> Iterator[Entry]:
    """What is new in some logs, by time."""
    together = heapq.merge(*(log.new_entries() for log in logs), key=lambda entry: entry.time)
    return (entry for entry in together if selection.takes(entry))


def parse_since(text: str, now: datetime.datetime | None = None) -> str:
    """Return a moment as `Entry.time`.

    Args:
        text: how long ago (`90s`, `10m`, `2h`, `1d`), a time of today (`14:05`), or a date with or
            without a time (`2025-03-02 14:05:30`).
        now: the present.

    Raises:
        ValueError: it is none of these.
    """
    now = now or datetime.datetime.now()
    ago = _AGO.fullmatch(text.strip())
    if ago:
        seconds = float(ago.group(1)) * _SECONDS[ago.group(2)]
        return _format(now - datetime.timedelta(seconds=seconds))
    try:
        if ":" in text and "-" not in text:
            time = datetime.time.fromisoformat(text.strip())
            return _format(datetime.datetime.combine(now.date(), time))
        return _format(datetime.datetime.fromisoformat(text.strip()))
    except ValueError:
        raise ValueError(
            f"--since {text!r} is no moment; allowed: how long ago (90s, 10m, 2h, 1d), a time of "
            "today (14:05) or a date (2025-03-02, '2025-03-02 14:05:30')"
        ) from None


def _format(moment: datetime.datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
