"""The episodes of a run that can be looked at: videos inside the page, or beside it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.cli.report.run_record import RunRecord, relative

_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


@dataclass(frozen=True)
class Video:
    """A video and what it shows.

    Attributes:
        title: what it shows.
        source: a data URI, or a path relative to the page.
        path: the file.
        embedded: whether it is in the page.
        success: whether the episode succeeded; None if that is not known.
    """

    title: str
    source: str
    path: Path
    embedded: bool
    success: bool | None = None


def find_videos(record: RunRecord, page: Path, most_bytes: int) -> list[Video]:
    """Return the videos of a run, put into the page as long as they are small enough together.

    Args:
        record: the run.
        page: where the page will be.
        most_bytes: how much may go into the page.
    """
    wanted: list[tuple[Path, str, bool | None]] = []
    for episode in episodes(record):
        if episode.get("video"):
            path = _locate(record.folder, episode["video"])
            wanted.append((path, title(episode), _truth(episode.get("success_once"))))
    if not wanted:
        wanted = [(record.folder / "policy.mp4", "an episode of the final policy", None)]
    out: list[Video] = []
    room = most_bytes
    for path, name, success in wanted:
        if not path.is_file():
            continue
        size = path.stat().st_size
        inside = size <= room and path.suffix in _TYPES
        room -= size if inside else 0
        source = _data_uri(path) if inside else relative(path, page)
        out.append(Video(name, source, path, inside, success))
    return out


def episodes(record: RunRecord) -> list[dict[str, Any]]:
    """Return the episodes of the last evaluation, each with what is known of it."""
    found = (record.evaluation or {}).get("episodes") or []
    return [episode for episode in found if isinstance(episode, dict)]


def tasks(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the numbers of the last evaluation by task; empty if it has none."""
    found = (record.evaluation or {}).get("tasks") or {}
    if isinstance(found, list):
        found = {
            str(row.get("task", n)): row for n, row in enumerate(found) if isinstance(row, dict)
        }
    return {name: row for name, row in found.items() if isinstance(row, dict)}


def title(episode: dict[str, Any]) -> str:
    """Return an episode in a few words."""
    task = episode.get("task")
    name = f"episode {episode.get('id', '?')}"
    return f"{name}, {task}" if task is not None else name


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _locate(folder: Path, text: str) -> Path:
    """Return a file of the run, also when the folder has been moved since."""
    path = Path(text)
    if not path.is_absolute():
        return folder / path
    return path if path.is_file() else folder / path.name


def _data_uri(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:{_TYPES[path.suffix]};base64,{data}"
