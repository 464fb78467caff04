"""One run in a list: read from its summary, and from the end of its metrics where that says less.

Hundreds are read in a moment: nothing here reads a whole file of metrics, or a configuration.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlinf.cli.report.run_record import RunRecord
from rlinf.cli.runs.names import STATUSES, UNKNOWN
from rlinf.cli.runs.score import Score, number, scores_of
from rlinf.utils.runs import read_summary
from rlinf.utils.runs.folders import shown
from rlinf.utils.runs.lock import holder_of
from rlinf.utils.runs.summary import EVALUATED, FINISHED, KILLED, RUNNING
from rlinf.utils.runs.tags import read_tags

_SPEEDS = {
    "env steps": ("env_steps_per_second", "env/steps_per_second"),
    "samples": ("samples_per_second", "rollout/samples_per_second"),
}
"""By what is counted: key of the summary, and metric of a step."""
_TAIL_BYTES = 262_144
_LATE_STEPS = 10
_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class Speed:
    """How fast a run is.

    Attributes:
        value: per second, over the whole training, or of the last steps of one without an end.
        unit: `env steps` or `samples`.
    """

    value: float
    unit: str


@dataclass(frozen=True)
class RunEntry:
    """What a list says of a run; what is not known is None.

    Attributes:
        folder: of the run.
        recipe: name of the config that was run.
        status: one of `STATUSES`.
        began: when it was started, in seconds since the epoch.
        step: global steps that are done.
        scores: of the final evaluation, or of the last on the way; the main one first.
        speed: how fast it is.
        wall_seconds: how long it took, or has taken so far.
        seed: of the run.
        tags: that its user gave it.
        error: why it failed.
        counts: env steps and samples that were made.
        commit: of the code, and whether it had uncommitted changes.
        versions: of packages.
        began_from: checkpoint of another run that it went on from.
    """

    folder: Path
    recipe: str
    status: str
    began: float
    step: int | None = None
    scores: list[Score] = field(default_factory=list)
    speed: Speed | None = None
    wall_seconds: float | None = None
    seed: Any = None
    tags: list[str] = field(default_factory=list)
    error: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    began_from: str | None = None

    @property
    def score(self) -> Score | None:
        """The score that is compared first."""
        return self.scores[0] if self.scores else None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, the folder as one would type it here."""
        out = asdict(self) | {"folder": str(shown(self.folder))}
        out["score"] = None if self.score is None else asdict(self.score)
        return out


def read_entry(folder: Path) -> RunEntry:
    """Read a run as far as its folder goes; one without a readable summary is `unknown`."""
    summary = read_summary(folder) or _of_a_beginning(folder)
    record = RunRecord(folder, summary)
    status = record.status if record.status in STATUSES else UNKNOWN
    # The summary of a run that has not come to its end is behind, or has no totals.
    late = [] if status in (FINISHED, EVALUATED) else _late_metrics(folder)
    steps = (number(summary.get("global_step")), number(late[-1].get("step")) if late else None)
    step = max((known for known in steps if known is not None), default=None)
    return RunEntry(
        folder=folder,
        recipe=_recipe(record),
        status=status,
        began=_began(record),
        step=None if step is None else int(step),
        scores=_scores(summary, late, is_open=status in (RUNNING, KILLED)),
        speed=_speed(summary, late),
        wall_seconds=number(record.wall_seconds),
        seed=summary.get("seed"),
        tags=read_tags(folder),
        error=summary.get("error"),
        counts=_counts(summary, late),
        commit=_commit(summary),
        versions=summary.get("versions") or {},
        began_from=_began_from(summary),
    )


def _of_a_beginning(folder: Path) -> dict[str, Any]:
    """Return what the lock tells of a run that has begun and not written a summary yet."""
    holder = holder_of(folder)
    return {} if holder is None else {"status": RUNNING, "began": holder.get("since")}


def _recipe(record: RunRecord) -> str:
    return record.summary.get("recipe") or record.recipe or record.folder.parent.name


def _began(record: RunRecord) -> float:
    """Return when a run began; without a summary its folder's name tells, or else its age."""
    known = number(record.began)
    if known is not None:
        return known
    name = re.match(r"\d{8}-\d{6}(?!\d)", record.folder.name)
    if name:
        return time.mktime(time.strptime(name.group(), "%Y%m%d-%H%M%S"))
    return record.folder.stat().st_mtime


def _scores(summary: dict[str, Any], late: list[dict[str, Any]], is_open: bool) -> list[Score]:
    """Return the scores of the last evaluation, with its step if the run went on after it.

    Args:
        summary: of the run.
        late: the last lines of its metrics.
        is_open: whether the metrics may be newer than the summary.
    """
    step = summary.get("evaluation_step")
    told = scores_of(
        summary.get("evaluation"), None if step == summary.get("global_step") else step
    )
    found = (scores_of(line, line.get("step")) for line in reversed(late))
    logged = next((scores for scores in found if scores), [])
    return (logged or told) if is_open else (told or logged)


def _speed(summary: dict[str, Any], late: list[dict[str, Any]]) -> Speed | None:
    for unit, (key, metric) in _SPEEDS.items():
        whole = number(summary.get(key))
        if whole is not None:
            return Speed(whole, unit)
        steps = [n for line in late if (n := number(line.get(metric))) is not None][-_LATE_STEPS:]
        if steps:
            return Speed(sum(steps) / len(steps), unit)
    return None


def _counts(summary: dict[str, Any], late: list[dict[str, Any]]) -> dict[str, int]:
    out = {}
    env_steps = number(summary.get("env_steps"))
    if env_steps is None:
        totals = (number(line.get("env/total_steps")) for line in reversed(late))
        env_steps = next((total for total in totals if total is not None), None)
    for name, count in (("env steps", env_steps), ("samples", number(summary.get("samples")))):
        if count is not None:
            out[name] = int(count)
    return out


def _began_from(summary: dict[str, Any]) -> str | None:
    """Return the checkpoint that a run went on from, unless it is one of its own."""
    checkpoint, own = summary.get("resumed_from"), summary.get("run_dir")
    if not checkpoint or (own and os.path.abspath(checkpoint).startswith(f"{own}{os.sep}")):
        return None
    return checkpoint


def _commit(summary: dict[str, Any]) -> str | None:
    git = summary.get("git") or {}
    if not git.get("commit"):
        return None
    changed = " with changes" if git.get("dirty") else ""
    return f"{git['commit'][:_COMMIT_DIGITS]}{changed}"


def _late_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the last whole lines of `metrics.jsonl`, without those that are damaged."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
        file.seek(begin)
        lines = file.read().split(b"\n")
    out = []
    # The last line is still being written; the first was cut off by where we began.
    for line in lines[1 if begin else 0 : -1]:
        try:
            found = json.loads(line)
        except ValueError:
            # `rlinf report` says which line is damaged; a list of runs need not end by it.
            continue
        if isinstance(found, dict):
            out.append(found)
    return out
