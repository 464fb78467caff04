"""`samples.jsonl`: responses and episodes of a run, for people and for the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rlinf.data.reasoning import Verdict
from rlinf.utils.disk import tolerate_disk_errors
from rlinf.utils.runs.folders import SAMPLES


def append_samples(folder: Path, verdicts: Iterable[Verdict], step: int) -> None:
    """Append the first response of each group, or its first episode; one line each.

    Args:
        folder: of the run.
        verdicts: of the groups.
        step: that trains on them.
    """
    _append(folder, ({"step": step, **sample_line(verdict)} for verdict in verdicts))


def write_evaluated(folder: Path, verdicts: Iterable[Verdict]) -> None:
    """Write the samples of an evaluation, in place of those of an earlier one.

    Args:
        folder: of the run.
        verdicts: of the groups.
    """
    _keep(folder, lambda line: "step" in line)
    _append(folder, map(sample_line, verdicts))


def drop_after(folder: Path, step: int) -> None:
    """Drop the samples of steps that are made anew.

    Args:
        folder: of the run.
        step: the last whose samples stay.
    """
    _keep(folder, lambda line: line.get("step", 0) <= step)


def sample_line(verdict: Verdict) -> dict[str, Any]:
    """Return what is written of a group, as plain data."""
    line: dict[str, Any] = {
        "prompt": verdict.prompt,
        "response": verdict.response,
        "answer": verdict.answer,
        "score": verdict.scores[0] if verdict.scores else None,
        "scores": verdict.scores,
        "learnt": verdict.learnt,
        "why_left_out": verdict.why_left_out,
    }
    if verdict.transcript is not None:
        # It has the score of an episode that is left out of `scores`, too.
        line |= vars(verdict.transcript)
    return line


def _append(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    place = folder / SAMPLES
    with tolerate_disk_errors(str(place)), open(place, "a") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def _keep(folder: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    place = folder / SAMPLES
    if not place.exists():
        return
    with tolerate_disk_errors(str(place)):
        lines = place.read_text().splitlines(keepends=True)
        # The last line of a run that was killed may not be complete.
        whole = [line for line in lines if line.endswith("\n")]
        kept = place.with_suffix(".part")
        kept.write_text("".join(line for line in whole if wanted(json.loads(line))))
        kept.replace(place)
