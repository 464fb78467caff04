"""An evaluation as a table for people, one row per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.utils.evaluation import Evaluation, Summary
from rlinf.utils.intervals import Interval
from rlinf.utils.numbers import interval, number, percent

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 120


def show_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """Print the table.

    Args:
        evaluation: What to show.
        console: Where; standard output by default.
    """
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    if not console.is_terminal:
        # A file has no width; lines are not to be broken for the sake of a guess.
        console.width = max(console.width, _WIDTH)
    table = Table(title=f"evaluation after step {evaluation.step}", caption=evaluation.protocol)
    table.add_column("task")
    solved = "solved (95 % interval)"
    has_success = evaluation.has_success
    rates = (solved, "at the end") if has_success else ()
    for name in ("episodes", "distinct starts", *rates, "return", "steps"):
        table.add_column(name, justify="right")
    for name, summary in evaluation.tasks.items():
        table.add_row(name, *_cells(summary, has_success))
    if len(evaluation.tasks) > 1:
        table.add_section()
        table.add_row("all", *_cells(evaluation.overall, has_success))
    console.print(table)
    for note in _notes(evaluation):
        console.print(note, highlight=False)


def _cells(summary: Summary, has_success: bool) -> list[str]:
    rate = summary.success_once
    rates = [
        interval(*map(percent, rate)),
        percent(summary.success_at_end.value),
    ]
    return [
        number(summary.episodes),
        number(summary.distinct_starts),
        *(rates if has_success else ()),
        _mean(summary.ret),
        _mean(summary.length),
    ]


def _mean(found: Interval) -> str:
    half = (found.high - found.low) / 2
    spread = f" ± {number(half, 2)}" if half < float("inf") else ""
    return f"{number(found.value)}{spread}"


def _notes(evaluation: Evaluation) -> list[str]:
    notes = []
    overall = evaluation.overall
    if overall.samples != overall.episodes:
        notes.append(
            f"intervals count {overall.samples} of {overall.episodes} episodes: those that begin "
            "alike and go alike count once"
        )
    if evaluation.dropped:
        shown = ", ".join(map(str, evaluation.dropped[:8]))
        more = " ..." if len(evaluation.dropped) > 8 else ""
        notes.append(f"episodes that had a NaN and do not count: {shown}{more}")
    return notes
