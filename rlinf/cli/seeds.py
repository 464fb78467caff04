"""`rlinf train --seeds`: one run per seed, one after the other, and a table of what came out."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rlinf.cli.runs.score import Score, scores_of
from rlinf.cli.runs.table import Column, set_table, terminal_width
from rlinf.cli.runs.words import metric_name, metric_value

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a run takes as a request to save and stop."""
MOST = 1000
"""Most seeds of one command."""

_ALLOWED = "whole numbers from 0 on, each once, without spaces: 1,2,3 or 1-3 or 1-3,7"
_ENDED_WELL = ("finished", "evaluated")


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text names; for `type` of an argument.

    Args:
        text: Numbers and ranges, such as `1,2,3` or `1-3`.

    Raises:
        argparse.ArgumentTypeError: It is not such a text.
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            what = f"{part!r} in {text!r}" if part and part != text else repr(text)
            raise argparse.ArgumentTypeError(
                f"{what} cannot be read as seeds; allowed are {_ALLOWED}"
            )
        first, last = int(found.group(1)), int(found.group(2) or found.group(1))
        if last < first:
            raise argparse.ArgumentTypeError(
                f"the range {part!r} ends before it begins; write {last}-{first}"
            )
        if len(seeds) + last - first >= MOST:
            raise argparse.ArgumentTypeError(f"{text!r} are more than {MOST} seeds; name fewer")
        seeds += range(first, last + 1)
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise argparse.ArgumentTypeError(
            f"{text!r} has {', '.join(map(str, twice))} more than once, and the same seed gives "
            f"the same run; allowed are {_ALLOWED}"
        )
    return seeds


@dataclass(frozen=True)
class SeedRun:
    """A run to start.

    Attributes:
        seed: Its seed.
        command: What starts it; the run chooses its folder.
        experiment: Folder in which its folder is made.
    """

    seed: int
    command: list[str]
    experiment: Path


def plan(
    command: Sequence[str],
    seeds: Sequence[int],
    config: Any,
    overrides: Sequence[str],
) -> list[SeedRun]:
    """Return one run per seed.

    Args:
        command: What starts the run of the config.
        seeds: The seeds.
        config: A `rlinf.cli.recipes.Config`, which is valid.
        overrides: As the user wrote them.

    Raises:
        ValueError: The config trains nothing, or says itself what differs between the runs.
    """
    from rlinf.config import build_config, validate_cfg

    if config.task_type == "workers":
        raise ValueError(f"{config.name} trains nothing, so it has no --seeds; leave them out")
    given = next((item for item in overrides if _key(item) == "runner.seed"), None)
    if given is not None:
        raise ValueError(
            f"{given} and --seeds both say which seed it is; leave {given} out, or train one run "
            "without --seeds"
        )
    runs = []
    for seed in seeds:
        own = f"runner.seed={seed}"
        cfg = validate_cfg(build_config(config.name, [*overrides, own], config.folder))
        if cfg.runner.run_dir is not None:
            raise ValueError(
                f"runner.run_dir is {cfg.runner.run_dir}, which all runs of --seeds would share; "
                "leave it out, so that each has a folder of its own, and say with "
                "runner.logger.log_path where these are"
            )
        if cfg.runner.resume_dir is not None:
            raise ValueError(
                f"runner.resume_dir is {cfg.runner.resume_dir}, and a run goes on with the seed "
                "that it began with; go on with one run at a time, without --seeds"
            )
        experiment = Path(cfg.runner.logger.log_path) / cfg.runner.logger.experiment_name
        runs.append(SeedRun(seed, [*command, f"++{own}"], experiment))
    return runs


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


# -- running ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of the run of a seed.

    Attributes:
        seed: The seed.
        folder: Of the run.
        code: Its exit code; a signal that ended it counts from 128 on, as in a shell.
        summary: Its `summary.json`; empty if there is none.
    """

    seed: int
    folder: Path
    code: int
    summary: dict[str, Any]

    @property
    def stopped(self) -> bool:
        """Whether a signal asked it to stop."""
        return self.code in [128 + signum for signum in SIGNALS]

    @property
    def status(self) -> str:
        """What the summary says, unless the exit code says that it went wrong after that."""
        if self.stopped:
            return "stopped"
        known = self.summary.get("status", _ENDED_WELL[0])
        return "failed" if self.code and known in (*_ENDED_WELL, "running") else known

    @property
    def failed(self) -> bool:
        """Whether it went wrong."""
        return self.code != 0 and not self.stopped

    @property
    def score(self) -> Score | None:
        """What its final evaluation is judged by; None if there is none."""
        scores = scores_of(self.summary.get("evaluation"))
        return scores[0] if scores and self.status in _ENDED_WELL else None


def run_series(runs: Sequence[SeedRun]) -> int:
    """Run one after the other and print what came out.

    A run that fails does not keep the others from running. A signal goes to the run that is under
    way, and no other is started.

    Returns:
        0; 1 if a run failed; the exit code of the run that was stopped, if one was.
    """
    from rlinf.utils.runs import new_run_folder, read_summary
    from rlinf.utils.runs.folders import shown

    outcomes: list[Outcome] = []
    blocked: OSError | None = None
    with _Signals() as signals:
        for number, run in enumerate(runs, 1):
            try:
                folder = new_run_folder(run.experiment).resolve()
            except OSError as error:
                blocked = error
                break
            print(f"\nseed {run.seed}, run {number} of {len(runs)}: {shown(folder)}", flush=True)
            code = signals.run([*run.command, f"++runner.run_dir={quoted(folder)}"])
            outcomes.append(Outcome(run.seed, folder, code, read_summary(folder) or {}))
            if outcomes[-1].stopped or signals.came is not None:
                break
    left = [run.seed for run in runs[len(outcomes) :]]
    # The terminal may be gone, which is what SIGHUP says.
    with contextlib.suppress(OSError):
        _tell(outcomes, left, blocked)
    if left and not blocked:
        # A run that had just come to its end when the signal came has the code 0.
        return outcomes[-1].code or 128 + (signals.came or 0)
    if outcomes and outcomes[-1].stopped:
        return outcomes[-1].code
    return int(blocked is not None or any(outcome.failed for outcome in outcomes))


def _tell(outcomes: Sequence[Outcome], left: Sequence[int], blocked: OSError | None) -> None:
    """Print what came out, which seeds were not run, and what went wrong."""
    if outcomes:
        print("\n".join(["", *table(outcomes, terminal_width()), spread(outcomes)]))
    if left:
        print(f"not started: {_named(left)}")
    sys.stdout.flush()
    if blocked is not None:
        print(
            f"rlinf train: nothing can be written to {blocked.filename}: {blocked.strerror}; set "
            "runner.logger.log_path to a folder of yours",
            file=sys.stderr,
        )
    for outcome in outcomes:
        if outcome.failed:
            print(_failure(outcome), file=sys.stderr)


def quoted(folder: Path) -> str:
    """Return a path as a value that Hydra takes, whatever characters it has."""
    escaped = str(folder).replace("'", "\\'")
    return f"'{escaped}'"


def _failure(outcome: Outcome) -> str:
    from rlinf.utils.runs.folders import shown

    error = str(outcome.summary.get("error") or "").partition("\n")[0]
    said = f": {error}" if error else ""
    return (
        f"rlinf train: seed {outcome.seed} failed with exit code {outcome.code}{said} "
        f"({shown(outcome.folder)})"
    )


class _Signals:
    """Passes signals on to the run that is under way; in its block.

    The run is in a session of its own, so that Ctrl-C reaches it by this process alone: a second
    signal would stop it at once, without saving.

    Attributes:
        came: The last signal; None if there was none.
    """

    def __init__(self) -> None:
        self.came: int | None = None
        self._process: subprocess.Popen | None = None
        self._passed_on = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for signum in SIGNALS:
            # What nohup and the like have switched off stays so.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def run(self, command: Sequence[str]) -> int:
        """Run a command to its end; return its exit code, from 128 on if a signal ended it."""
        with subprocess.Popen(command, start_new_session=True) as process:
            self._process = process
            if self.came is not None and not self._passed_on:
                # It came while the process was being made.
                process.send_signal(self.came)
            code = process.wait()
            self._process = None
        return 128 - code if code < 0 else code

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.came = signum
        if self._process is not None:
            self._passed_on = True
            self._process.send_signal(signum)


# -- what came out ---------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome], width: int | None = None) -> list[str]:
    """Return the runs, one line each, under a heading.

    Args:
        outcomes: The runs.
        width: Characters of a line; None for no limit.
    """
    from rlinf.utils.runs.folders import shown

    names = dict.fromkeys(outcome.score.metric for outcome in outcomes if outcome.score)
    heading = " / ".join(map(metric_name, names)) or "score"
    columns = [
        Column("seed", right=True),
        Column("status"),
        Column(heading, right=True),
        Column("steps", right=True, rank=2),
        Column("seconds", right=True, rank=1),
        Column("folder"),
    ]
    rows = []
    for outcome in outcomes:
        steps, seconds = (outcome.summary.get(key) for key in ("global_step", "wall_seconds"))
        rows.append(
            {
                "seed": str(outcome.seed),
                "status": outcome.status,
                heading: "-" if outcome.score is None else _with_interval(outcome.score),
                "steps": "-" if steps is None else f"{steps:,}",
                "seconds": "-" if seconds is None else f"{seconds:,.0f}",
                "folder": str(shown(outcome.folder)),
            }
        )
    return set_table(columns, rows, width)[0]


def spread(outcomes: Sequence[Outcome]) -> str:
    """Return mean and spread of the scores over the seeds that have one, in words."""
    scores = [outcome.score for outcome in outcomes if outcome.score]
    if not scores and any(outcome.status in _ENDED_WELL for outcome in outcomes):
        return "no run has a score: runner.val_check_interval lets a run evaluate its policy"
    if not scores:
        return "no run came to its end, so there is no score"
    metric = scores[0].metric
    values = [score.value for score in scores if score.metric == metric]
    name, count = metric_name(metric), len(values)
    mean = statistics.fmean(values)
    if count == 1:
        return f"{name} of one seed: {metric_value(metric, mean)}"
    of = f"{count}" if count == len(outcomes) else f"{count} of {len(outcomes)}"
    deviation, low, high = (
        metric_value(metric, value)
        for value in (statistics.stdev(values), min(values), max(values))
    )
    return (
        f"{name} over {of} seeds: mean {metric_value(metric, mean)}, "
        f"standard deviation {deviation}, from {low} to {high}"
    )


def _with_interval(score: Score) -> str:
    value = metric_value(score.metric, score.value)
    if score.low is None or score.high is None:
        return value
    low, high = (metric_value(score.metric, end) for end in (score.low, score.high))
    return f"{value} ({low} – {high})"


def _named(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
