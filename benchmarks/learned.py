"""What a benchmark of learning tells of its runs: a table, and whether they learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.cli.curves import Curve
from rlinf.utils.intervals import wilson

GOAL = 0.95
"""Success that every seed should reach."""
GAIN = 0.2
"""By how much every seed should answer better than before its training."""


@dataclass(frozen=True)
class Run:
    """One seed.

    Attributes:
        seed: its `runner.seed`.
        curve: what its evaluations found.
        steps: length of the training, counted as in the curve.
        training_seconds: time of rollouts and updates, without start and evaluations.
        wall_seconds: from the command to its end.
    """

    seed: int
    curve: Curve
    steps: int
    training_seconds: float
    wall_seconds: float

    @property
    def answers(self) -> bool:
        """Whether it trains a language model, which answers questions."""
        return "pass@1" in self.curve.values

    @property
    def steps_to_goal(self) -> int | None:
        """Steps before the first evaluation that reached the goal."""
        return self.curve.first_at_least("success_once", GOAL)

    @property
    def succeeded(self) -> bool:
        """Whether any evaluated episode counted as a success; some envs have none that could."""
        return any(self.curve.values["success_once"])

    def reached(self, within: int | None) -> bool:
        """Return whether the goal was reached, within so many steps or at all."""
        steps = self.steps_to_goal
        return steps is not None and (within is None or steps <= within)

    @property
    def gained(self) -> bool:
        """Whether the last answers are better than the first by `GAIN`, and not by chance."""
        curve = self.curve
        rates = [curve.values["pass@1"][place] for place in (0, -1)]
        first, last = (
            wilson(rate, curve.episodes[place]) for rate, place in zip(rates, (0, -1), strict=True)
        )
        return rates[1] - rates[0] >= GAIN and first.high < last.low


def table(runs: Sequence[Run]) -> str:
    """Return the runs in Markdown, one line each."""
    rows = _answers(runs) if runs and runs[0].answers else _episodes(runs)
    head, *body = rows
    lines = [head, ["---:"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _episodes(runs: Sequence[Run]) -> list[list[str]]:
    """Return the head and a row per run; success only where there is any."""
    successes = any(run.succeeded for run in runs)
    unit = unit_of(runs)
    head = ["seed", "final return", unit, "wall (s)", f"{unit}/s"]
    if successes:
        head[1:2] = [f"{unit} to {GOAL:.0%}", "final success (n)", "final return"]
    rows = [head]
    for run in runs:
        steps, curve = run.steps_to_goal, run.curve
        cells = [str(run.seed)]
        if successes:
            cells.append("not reached" if steps is None else f"{steps:,}")
            cells.append(f"{curve.values['success_once'][-1]:.0%} ({curve.episodes[-1]})")
        cells += [f"{curve.values['return'][-1]:,.0f}", f"{run.steps:,}"]
        speed = run.steps / run.training_seconds
        rows.append([*cells, f"{run.wall_seconds:.0f}", f"{speed:,.0f}"])
    return rows


def _answers(runs: Sequence[Run]) -> list[list[str]]:
    """Return the head and a row per run; what else than pass@1 was measured has its columns."""
    further = [name for name in runs[0].curve.values if name != "pass@1"]
    unit = unit_of(runs)
    rows = [["seed", "first pass@1", "final pass@1 (n)", *further, unit, "wall (s)", "s/step"]]
    for run in runs:
        values = run.curve.values
        first, last = (values["pass@1"][place] for place in (0, -1))
        cells = [str(run.seed), f"{first:.1%}", f"{last:.1%} ({run.curve.episodes[-1]})"]
        cells += [f"{values[name][-1]:.1%}" for name in further]
        speed = run.training_seconds / run.steps
        rows.append([*cells, f"{run.steps:,}", f"{run.wall_seconds:.0f}", f"{speed:.2f}"])
    return rows


def conclusion(runs: Sequence[Run], asked: int, within: int | None = None) -> str:
    """Return how many seeds learned, or the returns where no episode succeeds.

    Args:
        runs: the runs that did not fail.
        asked: how many there should be.
        within: steps within which the goal counts; None: whenever it is reached.
    """
    if runs and runs[0].answers:
        gained = sum(run.gained for run in runs)
        return (
            f"{gained} of {asked} seeds answer at least {100 * GAIN:.0f} points better than before "
            f"the training, with disjoint 95% intervals (aim: all): {_verdict(gained, asked)}"
        )
    if runs and not any(run.succeeded for run in runs):
        first, final = ([run.curve.values["return"][i] for run in runs] for i in (0, -1))
        return (
            f"no episode of any seed counted as a success; returns of {len(runs)} of {asked} "
            f"seeds: first {min(first):,.0f} to {max(first):,.0f}, final {min(final):,.0f} to "
            f"{max(final):,.0f}"
        )
    reached = sum(run.reached(within) for run in runs)
    limit = max((run.steps for run in runs), default=0) if within is None else within
    return (
        f"{reached} of {asked} seeds reached {GOAL:.0%} evaluated success within {limit:,} "
        f"{unit_of(runs)} (aim: all): {_verdict(reached, asked)}"
    )


def _verdict(good: int, asked: int) -> str:
    return "met" if good == asked else "**missed**"


def unit_of(runs: Sequence[Run]) -> str:
    """Return what the steps of runs count."""
    return runs[0].curve.unit if runs else "env steps"
