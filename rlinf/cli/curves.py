"""Learning curves: read from a run, kept in a file per recipe, and compared with its band.

A *curve* is what the evaluations of one run found: success rate and return over env steps, or over
gradient updates if the run learns from data alone; pass@1 over training steps if it trains a
language model or an agent. A *curve file*, `curves/<recipe>.json` beside
the recipe's `config` folder, holds the curves of several seeds. Its *band* is where a run of the
recipe is expected. `benchmarks/learning.py` writes such files, `rlinf verify` compares a run with
one.

Early in training a band reaches from nothing to everything, since seeds begin to learn at different
times. There it refutes no run, and so confirms none: it *judges* only where its lower edge is above
what a run reaches that learns nothing.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

UNITS = {
    "env steps": "env/total_steps",
    "gradient updates": "train/gradient_updates",
    "training steps": "step",
}
"""What the length of a training may be counted in, and the metric that counts it; a run that has
several is told in the first. Where episodes end at different times, so do the rollouts of different
seeds: then their curves have training steps in common, and no env steps."""

PLAYED, ANSWERED = ("success_once", "return"), ("pass@1",)
"""What the curve of a run holds whose evaluations play episodes, or answer questions. The first one
is compared; recipes without successes compare the next."""

MARGIN = 0.1
"""By how much a band is wider than its curves, as a share of their whole range."""

Place = Literal["inside", "above", "below"]


class NoCurve(ValueError):
    """There is nothing to compare with, or nothing to compare."""


@dataclass(frozen=True)
class Curve:
    """What the evaluations of a run found.

    Attributes:
        steps: length of the training before each evaluation, rising.
        episodes: episodes of each evaluation.
        values: means over these episodes, one list entry per evaluation, by name: `PLAYED`, or
            `ANSWERED` and what else says how many were right: by task, without tools.
        unit: what `steps` counts, one of `UNITS`.
        training_steps: the same as `steps`, in training steps, if it is known.
    """

    steps: list[int]
    episodes: list[int]
    values: dict[str, list[float]]
    unit: str = "env steps"
    training_steps: list[int] = field(default_factory=list)

    def counted_in(self, unit: str) -> Curve:
        """Return the curve over another unit; itself if it is that, or does not know."""
        if unit == self.unit or unit != "training steps" or not self.training_steps:
            return self
        return replace(self, steps=self.training_steps, unit=unit)

    def first_at_least(self, metric: str, value: float) -> int | None:
        """Steps before the first evaluation that reached a value, None if none did."""
        reached = zip(self.steps, self.values[metric], strict=True)
        return next((steps for steps, found in reached if found >= value), None)


@dataclass(frozen=True)
class Band:
    """Where a run is expected to be.

    Attributes:
        steps: where the edges are given, rising.
        low: lower edge at each of them.
        high: upper edge at each of them.
        floor: what a run reaches that learns nothing.
        unit: what `steps` counts, one of `UNITS`.
    """

    steps: list[int]
    low: list[float]
    high: list[float]
    floor: float = 0.0
    unit: str = "env steps"

    @property
    def judging(self) -> list[int]:
        """Those of `steps` at which a run that learns nothing would be below the band."""
        return [steps for steps, low in zip(self.steps, self.low, strict=True) if low > self.floor]

    def at(self, steps: int) -> tuple[float, float] | None:
        """Lower and upper edge, linear between the given ones; None outside of the band's ends."""
        if not self.steps[0] <= steps <= self.steps[-1]:
            return None
        right = min(bisect_right(self.steps, steps), len(self.steps) - 1)
        left = max(right - 1, 0)
        begin, end = self.steps[left], self.steps[right]
        share = (steps - begin) / (end - begin) if end > begin else 0.0
        low, high = (
            edge[left] + share * (edge[right] - edge[left]) for edge in (self.low, self.high)
        )
        return low, high


@dataclass(frozen=True)
class Point:
    """One evaluation beside the band.

    Attributes:
        steps: length of the training before it.
        value: what it found.
        low: lower edge of the band there.
        high: upper edge.
        floor: what a run reaches that learns nothing.
    """

    steps: int
    value: float
    low: float
    high: float
    floor: float = 0.0

    @property
    def place(self) -> Place:
        """Where the value is."""
        if self.value < self.low:
            return "below"
        return "above" if self.value > self.high else "inside"

    @property
    def judges(self) -> bool:
        """Whether its place says anything: inside a band that takes all runs, it does not."""
        return self.low > self.floor or self.place != "inside"


@dataclass(frozen=True)
class Verdict:
    """A whole run beside the band.

    Attributes:
        points: evaluations that the band says something about.
        not_compared: evaluations before or after all that the band knows.
    """

    points: list[Point]
    not_compared: int = 0

    @property
    def first_below(self) -> Point | None:
        """The first evaluation that was worse than the band."""
        return next((point for point in self.points if point.place == "below"), None)

    @property
    def judged(self) -> list[Point]:
        """The evaluations that say anything; without one, nothing is known of the run."""
        return [point for point in self.points if point.judges]

    @property
    def ok(self) -> bool:
        """Whether no evaluation was worse than the band; better ones are welcome."""
        return self.first_below is None


def compare(steps: Sequence[int], values: Sequence[float], band: Band) -> Verdict:
    """Compare a curve with a band.

    Args:
        steps: where the curve was measured, rising; need not be where the band's edges are.
        values: the curve.
        band: where it should be.

    Raises:
        NoCurve: not one evaluation lies where the band does.
    """
    points = []
    for place, value in zip(steps, values, strict=True):
        edges = band.at(place)
        if edges is not None:
            points.append(Point(place, value, *edges, band.floor))
    if not points:
        raise NoCurve(
            f"no evaluation between {band.steps[0]:,} and {band.steps[-1]:,} {band.unit}, "
            f"where the band is; the run was evaluated after: "
            f"{', '.join(f'{place:,}' for place in steps) or 'none'}"
        )
    return Verdict(points, not_compared=len(steps) - len(points))


def make_band(
    steps: Sequence[int],
    curves: Iterable[Sequence[float]],
    floor: float = 0.0,
    unit: str = "env steps",
) -> Band:
    """Make the band of some curves that were measured after the same steps.

    An edge is the lowest (highest) value of any curve at this evaluation, the one before and the
    one after it, moved outwards by `MARGIN` times the range of all values. So a run may be one
    evaluation later or earlier than the slowest or fastest seed: curves of few seeds do not show
    every run that is all right.

    Args:
        steps: where the curves were measured.
        curves: one per seed.
        floor: what a run reaches that learns nothing.
        unit: what `steps` counts, one of `UNITS`.
    """
    curves = [list(curve) for curve in curves]
    flat = [value for curve in curves for value in curve]
    margin = MARGIN * (max(flat) - min(flat))
    low, high = [], []
    for index in range(len(steps)):
        near = [value for curve in curves for value in curve[max(0, index - 1) : index + 2]]
        low.append(min(near) - margin)
        high.append(max(near) + margin)
    return Band(list(steps), low, high, floor, unit)


# -- curves of runs --------------------------------------------------------------------------------


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a run's `metrics.jsonl`.

    Raises:
        NoCurve: the run has none.
        ValueError: a line is damaged.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise NoCurve(f"{path} is not there: the run ended early, or does not log to jsonl")
    text = path.read_text()
    lines = text.splitlines()
    out = []
    for number, line in enumerate(lines, 1):
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines) or text.endswith("\n"):
                raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
    return out


def read_curve(folder: Path) -> Curve:
    """Return the curve of a run; of several evaluations of a policy the last one counts.

    Raises:
        NoCurve: the run was not evaluated.
    """
    lines = read_metrics(folder)
    unit = training_unit(lines)
    steps_of = {line["step"]: int(line[UNITS[unit]]) for line in lines if UNITS[unit] in line}
    evaluations = {line["step"]: line for line in lines if _trials(line)}
    found = sorted(step for step in evaluations if step in steps_of)
    if not found:
        raise NoCurve(
            f"{folder} has no evaluation: set runner.val_check_interval, and an env.eval section "
            "or data with validation prompts"
        )
    chosen = [evaluations[step] for step in found]
    return Curve(
        steps=[steps_of[step] for step in found],
        episodes=[_trials(line) for line in chosen],
        values={
            name: [line.get(f"eval/{name}", 0.0) for line in chosen] for name in _names(chosen)
        },
        unit=unit,
        training_steps=found,
    )


def _trials(line: Mapping[str, Any]) -> int:
    """Return of how many episodes or prompts an evaluation is; 0 if the line has none."""
    return int(line.get("eval/episodes") or line.get("eval/prompts") or 0)


def _names(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the curve of some evaluations holds."""
    if not any("eval/pass@1" in line for line in evaluations):
        return list(PLAYED)
    keys = [key.removeprefix("eval/") for key in evaluations[-1] if key.startswith("eval/")]
    further = [key for key in keys if key.endswith("/pass@1") or key == "pass@1_no_tools"]
    return [*ANSWERED, *sorted(further)]


def training_unit(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return which of `UNITS` the metrics of a run count; env steps if none."""
    return next(
        (unit for unit, name in UNITS.items() if any(name in line for line in lines)), "env steps"
    )


# -- curve files -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurveFile:
    """The curves of a recipe.

    Attributes:
        recipe: its name.
        overrides: with which the curves were made; a run to compare needs the same.
        metric: which of their values is compared.
        curves: by seed, all measured after the same steps.
        facts: who made it: command, date, machine, versions.
    """

    recipe: str
    overrides: list[str]
    metric: str
    curves: dict[int, Curve]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        """Where all curves were measured."""
        return next(iter(self.curves.values())).steps

    @property
    def unit(self) -> str:
        """What all of them count, one of `UNITS`."""
        return next(iter(self.curves.values())).unit

    def band(self, without: int | None = None) -> Band:
        """Return the band of all seeds, or of all but one."""
        chosen = [curve for seed, curve in self.curves.items() if seed != without]
        values = [curve.values[self.metric] for curve in chosen]
        return make_band(self.steps, values, self.floor, self.unit)

    @property
    def floor(self) -> float:
        """What a run reaches that learns nothing: no success, or nothing better than at first.

        Returns have no zero of their own, and a language model answers some questions before it is
        trained, so the best of the first evaluations stands for it.
        """
        if self.metric == "success_once":
            return 0.0
        return max(curve.values[self.metric][0] for curve in self.curves.values())

    def seeds_inside(self) -> list[int]:
        """Return the seeds that stay inside the band of the others; they tell how good it is."""
        return [
            seed
            for seed, curve in self.curves.items()
            if compare(curve.steps, curve.values[self.metric], self.band(without=seed)).ok
        ]


def gather(
    recipe: str,
    overrides: Sequence[str],
    curves: Mapping[int, Curve],
    facts: Mapping[str, Any],
) -> CurveFile:
    """Make the content of a curve file.

    Raises:
        ValueError: there are fewer than two seeds, or they were not measured after the same steps.
    """
    if len(curves) < 2:
        raise ValueError(f"a band needs at least 2 seeds, not {len(curves)}")
    if len(_places(curves)) > 1:
        curves = {seed: curve.counted_in("training steps") for seed, curve in curves.items()}
    if len(_places(curves)) > 1:
        raise ValueError(
            "the seeds were not evaluated after the same steps: "
            + "; ".join(
                f"seed {seed}: {curve.unit} {curve.steps}" for seed, curve in curves.items()
            )
        )
    names = _names_in_all(curves)
    succeeded = any(any(curve.values[names[0]]) for curve in curves.values())
    metric = names[0] if succeeded or "return" not in names else "return"
    return CurveFile(recipe, list(overrides), metric, dict(curves), dict(facts))


def _names_in_all(curves: Mapping[int, Curve]) -> list[str]:
    """Return what all curves hold, what is compared first."""
    found = list(curves.values())
    common = [name for name in found[0].values if all(name in curve.values for curve in found)]
    if not common:
        raise ValueError(
            "the seeds were evaluated by different metrics: "
            + "; ".join(f"seed {seed}: {', '.join(c.values)}" for seed, c in curves.items())
        )
    return common


def _places(curves: Mapping[int, Curve]) -> set[tuple]:
    return {(curve.unit, *curve.steps) for curve in curves.values()}


def save(file: CurveFile, path: Path) -> None:
    """Write a curve file; the band is written for readers and made anew when it is read."""
    band = file.band()
    rounded = {
        seed: {
            "episodes": curve.episodes,
            **{name: [round(v, 4) for v in values] for name, values in curve.values.items()},
        }
        for seed, curve in file.curves.items()
    }
    content = {
        "recipe": file.recipe,
        **file.facts,
        "overrides": file.overrides,
        "metric": file.metric,
        _key(file.unit): file.steps,
        "band": {
            "low": [round(v, 4) for v in band.low],
            "high": [round(v, 4) for v in band.high],
        },
        "seeds": rounded,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_compact(content) + "\n")


def load(path: Path) -> CurveFile:
    """Read a curve file.

    Raises:
        ValueError: it is not one.
    """
    try:
        content = json.loads(path.read_text())
        unit = next((unit for unit in UNITS if _key(unit) in content), "env steps")
        steps = [int(step) for step in content.pop(_key(unit))]
        curves = {
            int(seed): Curve(steps, found.pop("episodes"), found, unit)
            for seed, found in content.pop("seeds").items()
        }
        known = [content.pop(key) for key in ("recipe", "overrides", "metric")]
        if any(known[2] not in curve.values for curve in curves.values()):
            raise KeyError(known[2])
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a curve file ({type(error).__name__}: {error}); "
            "make it anew with python -m benchmarks.learning --write"
        ) from error
    content.pop("band", None)
    return CurveFile(*known, curves, content)


def path_for(config_folder: Path, recipe: str) -> Path:
    """Return where the curve file of a recipe is, or would be."""
    return config_folder.parent / "curves" / f"{recipe}.json"


def recipes_with_curves(config_folders: Iterable[Path]) -> list[str]:
    """Return the names of the recipes that have a curve file."""
    found = {
        path.stem
        for folder in config_folders
        for path in (folder.parent / "curves").glob("*.json")
        if (folder / f"{path.stem}.yaml").is_file()
    }
    return sorted(found)


def _key(unit: str) -> str:
    return unit.replace(" ", "_")


def _compact(content: Mapping[str, Any]) -> str:
    """JSON with one line per list of numbers."""
    lines = json.dumps(content, indent=1).splitlines()
    out: list[str] = []
    for line in lines:
        closes = line.strip().startswith("]")
        if out and "[" in out[-1] and "]" not in out[-1]:
            out[-1] += line.strip() if closes or out[-1].endswith("[") else f" {line.strip()}"
        else:
            out.append(line)
    return "\n".join(out)
