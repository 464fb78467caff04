"""What a run left in its folder, read as far as it goes: also of one that is under way or died."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf.cli.curves import NoCurve, read_metrics
from rlinf.cli.runs.find import not_a_run
from rlinf.cli.worker_logs import LogFile, Selection, find_logs, merged
from rlinf.utils.runs import read_summary

_LOG_BYTES = 65_536
_LOG_ENTRIES = 200


@dataclass
class RunRecord:
    """A run, as its folder tells it.

    Attributes:
        folder: of the run.
        summary: `summary.json`; empty if there is none.
        config: `config.yaml`; empty if there is none.
        metrics: the lines of `metrics.jsonl`, whole ones only.
        failure: the failure card; None if there is none.
        earlier: failure cards of earlier starts and of attempts before a restart.
        evaluation: `evaluation.json`, each episode of the last evaluation; None if there is none.
        log: the end of the workers' logs, merged: (level, text).
    """

    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    earlier: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] | None = None
    log: list[tuple[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.resolve().name

    @property
    def status(self) -> str:
        """What `summary.json` says; `killed` if the driver is gone without a word, or `unknown`."""
        status = self.summary.get("status", "unknown")
        return "failed" if status in ("killed", "unknown") and self.failure else status

    @property
    def began(self) -> float | None:
        """When the run was started, in seconds since the epoch."""
        return self.summary.get("began")

    @property
    def last_sign(self) -> float:
        """When something was last written, in seconds since the epoch."""
        names = ("summary.json", "metrics.jsonl", "workers/driver.trace", "config.yaml")
        found = [self.folder / name for name in names]
        return max((path.stat().st_mtime for path in found if path.exists()), default=0.0)

    @property
    def wall_seconds(self) -> float | None:
        """How long it took, or has taken so far."""
        if self.status in ("running", "killed") and self.began is not None:
            end = time.time() if self.status == "running" else self.last_sign
            return end - self.began
        return self.summary.get("wall_seconds")

    @property
    def recipe(self) -> str | None:
        """Name of the config that was run, as far as it is known."""
        if self.summary.get("recipe"):
            return self.summary["recipe"]
        command = self.summary.get("command", [])
        for flag, value in zip(command, command[1:], strict=False):
            if flag in ("--config-name", "-cn"):
                return value
        return None

    @property
    def overrides(self) -> dict[str, str]:
        """What the command line set, by key."""
        found = {}
        for argument in self.summary.get("command", [])[1:]:
            key, equals, value = argument.partition("=")
            if equals and not argument.startswith("-"):
                found[key.lstrip("+~")] = value
        return found

    def latest(self, name: str) -> float | None:
        """Return the last value of a metric."""
        return next((line[name] for line in reversed(self.metrics) if name in line), None)


def read_run(folder: Path) -> RunRecord:
    """Read a run.

    Raises:
        ValueError: it is not the folder of a run.
    """
    known = ("summary.json", "config.yaml", "metrics.jsonl", "workers")
    if not any((folder / name).exists() for name in known):
        raise ValueError(not_a_run(folder))
    summary = read_summary(folder) or {}
    cards = sorted(folder.glob("workers.failed_*/failure.json"))
    last = folder / "workers" / "failure.json"
    is_old = last.exists() and last.stat().st_mtime < summary.get("began", 0.0)
    cards += [last] if is_old else []
    return RunRecord(
        folder=folder,
        summary=summary,
        config=_read_config(folder / "config.yaml"),
        metrics=_read_metrics(folder),
        failure=None if is_old else _read_json(last),
        earlier=[card for path in cards if (card := _read_json(path))],
        evaluation=_read_json(folder / "evaluation.json"),
        log=_read_log(folder),
    )


def _read_metrics(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_metrics(folder)
    except NoCurve:
        return []


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); mend it or move it away") from error


def _read_config(path: Path) -> dict[str, Any]:
    import yaml

    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def _read_log(folder: Path) -> list[tuple[str, str]]:
    try:
        files = [LogFile(name, path) for name, path in find_logs(folder).items()]
    except ValueError:
        return []
    for file in files:
        file.skip_to_last(_LOG_BYTES)
    entries = list(merged(files, Selection()))[-_LOG_ENTRIES:]
    return [(entry.level, entry.text) for entry in entries]


def relative(path: Path, page: Path) -> str:
    """Return how a page refers to a file beside it."""
    return Path(os.path.relpath(path, page.resolve().parent)).as_posix()
