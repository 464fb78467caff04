"""What an evaluation found: its episodes, and what they say of the policy, with intervals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlinf.utils.intervals import Interval, mean_interval, wilson
from rlinf.utils.numbers import number, percent


@dataclass
class EpisodeRecord:
    """How one episode of an evaluation went.

    Attributes:
        id: Its number, from 0; with the `env.eval` section it determines how the episode begins.
        task: Name of the task.
        reset_id: Reset state in which it began; -1 if the env has no list of them.
        seed: Seed with which it began.
        success_once: Solved at any step.
        success_at_end: Solved at the last step.
        ret: Sum of its rewards; `return` in files.
        length: Its steps.
        start: Hash of its first observation; None if nobody looked at it.
        video: Path of its video; None if there is none.
    """

    id: int
    task: str
    reset_id: int
    seed: int
    success_once: bool
    success_at_end: bool
    ret: float
    length: int
    start: str | None = None
    video: str | None = None

    def outcome(self) -> tuple[bool, bool, float, int]:
        """Return what the policy and the env made of it."""
        return self.success_once, self.success_at_end, self.ret, self.length

    def to_json(self) -> dict[str, Any]:
        """Plain data, under the names that files have."""
        return {{"ret": "return"}.get(key, key): value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Summary:
    """What some episodes say together.

    Attributes:
        episodes: How many there are.
        distinct_starts: In how many different ways they begin, by their first observations, with
            nothing hidden.
        samples: What intervals count: episodes that begin alike and go alike say nothing new and
            are one sample. Those that begin alike and go different ways, as the env is random, are
            one for each seed.
        success_once: Share of those solved at any step, Wilson interval.
        success_at_end: Share of those solved at the last step, Wilson interval.
        ret: Mean return, Student interval; `return` in files.
        length: Mean length, Student interval.
    """

    episodes: int
    distinct_starts: int
    samples: int
    success_once: Interval
    success_at_end: Interval
    ret: Interval
    length: Interval

    @classmethod
    def of(cls, records: Sequence[EpisodeRecord]) -> Summary:
        """Add episodes up."""
        by_start = _by_start(records)
        samples = [sample for alike in by_start for sample in _samples(alike)]

        def rate(name: str) -> Interval:
            return wilson(_mean(getattr(record, name) for record in records), len(samples))

        def mean(name: str) -> Interval:
            found = mean_interval(
                [_mean(getattr(record, name) for record in alike) for alike in samples]
            )
            # Where some starts were played more often than others the means are not the same.
            own = _mean(getattr(record, name) for record in records)
            shift = own - found.value
            return Interval(own, found.low + shift, found.high + shift)

        return cls(
            len(records),
            len(by_start),
            len(samples),
            rate("success_once"),
            rate("success_at_end"),
            mean("ret"),
            mean("length"),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; an end of an interval that is not known is None."""
        names = ("episodes", "distinct_starts", "samples")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in ("success_once", "success_at_end", "ret", "length"):
            interval: Interval = getattr(self, name)
            key = {"ret": "return"}.get(name, name)
            out[key] = {end: _finite(value) for end, value in interval._asdict().items()}
        return out


@dataclass
class Evaluation:
    """One evaluation of one policy.

    Attributes:
        step: Global step of the policy.
        protocol: In words, what was asked: env, seed, number and length of episodes.
        records: The episodes, by number.
        counters: Failed simulators and episodes with a NaN, by name.
        dropped: Numbers of the episodes that were begun and do not count, since they had a NaN.
        checkpoint: Where the policy is saved; None if the run has it only in memory.
        video_note: Why there are no videos, or that one does not show what was counted; else "".
        has_success: Whether the env tells when a task is solved; otherwise returns count.
    """

    step: int
    protocol: str
    records: list[EpisodeRecord]
    counters: dict[str, int] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    checkpoint: str | None = None
    video_note: str = ""
    has_success: bool = True

    def __post_init__(self) -> None:
        """Add the episodes up, all of them and task by task."""
        self.records = sorted(self.records, key=lambda record: record.id)
        self.overall = Summary.of(self.records)
        names = dict.fromkeys(record.task for record in self.records)
        self.tasks = {
            name: Summary.of([record for record in self.records if record.task == name])
            for name in names
        }

    def metrics(self) -> dict[str, float]:
        """Return what is logged, under `eval/`."""
        out = {
            "episodes": float(self.overall.episodes),
            "distinct_starts": float(self.overall.distinct_starts),
        }
        if self.records and self.has_success:
            rate = self.overall.success_once
            out |= {
                "success_once": rate.value,
                "success_once_low": rate.low,
                "success_once_high": rate.high,
                "success_at_end": self.overall.success_at_end.value,
            }
        if self.records:
            out |= {
                "return": self.overall.ret.value,
                "episode_len": self.overall.length.value,
                "reward": _mean(record.ret / max(1, record.length) for record in self.records),
            }
        if len(self.tasks) > 1:
            for name, summary in self.tasks.items():
                if self.has_success:
                    out[f"success_once/{name}"] = summary.success_once.value
                out[f"return/{name}"] = summary.ret.value
        out |= {name: float(count) for name, count in self.counters.items()}
        return {f"eval/{name}": value for name, value in out.items()}

    def failures(self) -> list[int]:
        """Return the numbers of the episodes that were never solved."""
        if not self.has_success:
            return []
        return [record.id for record in self.records if not record.success_once]

    def sentence(self) -> str:
        """Return the success rate, or the return, with number of episodes and interval."""
        if not self.records:
            return "no episode of the evaluation counts: all of them had a NaN"
        found = self.overall.success_once if self.has_success else self.overall.ret
        show, name = (percent, "success") if self.has_success else (number, "return")
        value, low, high = map(show, found)
        return (
            f"evaluated {name} {value} over {self.overall.episodes} episodes from "
            f"{self.overall.distinct_starts} distinct starts (95 % interval: {low} to {high})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "step": self.step,
            "checkpoint": self.checkpoint,
            "protocol": self.protocol,
            "overall": self.overall.to_json(),
            "tasks": {name: summary.to_json() for name, summary in self.tasks.items()},
            "counters": self.counters,
            "dropped": self.dropped,
            "video_note": self.video_note,
            "has_success": self.has_success,
            "episodes": [record.to_json() for record in self.records],
        }

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        os.replace(part, path)


def read_evaluation(path: Path) -> Evaluation:
    """Read a file that `Evaluation.write` wrote.

    Raises:
        ValueError: It is not one.
    """
    try:
        content: Mapping[str, Any] = json.loads(path.read_text())
        records = [
            EpisodeRecord(**{{"return": "ret"}.get(k, k): v for k, v in episode.items()})
            for episode in content["episodes"]
        ]
        names = ("step", "protocol", "counters", "dropped", "checkpoint", "video_note")
        facts = {name: content[name] for name in names}
        # Files of earlier versions do not have it.
        return Evaluation(records=records, has_success=content.get("has_success", True), **facts)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no evaluation ({type(error).__name__}: {error})") from error


def _by_start(records: Sequence[EpisodeRecord]) -> list[list[EpisodeRecord]]:
    """Group the episodes that begin alike.

    Those with the same reset state and seed do, also where the last bit of an observation differs
    between machines.
    """
    starts: dict[tuple, Any] = {}
    alike: dict[tuple, list[EpisodeRecord]] = {}
    for record in records:
        plan = (record.reset_id, record.seed)
        own = plan if record.start is None else record.start
        start = starts.setdefault((record.task, plan), own)
        alike.setdefault((record.task, start), []).append(record)
    return list(alike.values())


def _samples(alike: Sequence[EpisodeRecord]) -> list[list[EpisodeRecord]]:
    """Group episodes that begin alike into independent samples."""
    if len({record.outcome() for record in alike}) == 1:
        return [list(alike)]
    by_plan: dict[tuple[int, int], list[EpisodeRecord]] = {}
    for record in alike:
        by_plan.setdefault((record.reset_id, record.seed), []).append(record)
    return list(by_plan.values())


def _mean(values: Iterable[float]) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else float("nan")


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
