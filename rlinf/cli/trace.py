"""`rlinf trace RUN`: where the time of a run went, and what to change."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf.cli.run_argument import ABOUT, run_argument
from rlinf.utils.numbers import number, percent

if TYPE_CHECKING:
    from rlinf.cli.timeline.summary import LaneSummary, Summary


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("trace", help="say where the time of a run went")
    parser.add_argument("folder", type=run_argument, help=ABOUT)
    parser.add_argument(
        "--steps", metavar="A:B", default="1:", help="steps to add up, from 0; leaves out the first"
    )
    parser.add_argument("--chrome", metavar="FILE", help="where to write the timeline for Perfetto")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table and the sentence."""
    from rlinf.cli.timeline.chrome import write_chrome_trace
    from rlinf.cli.timeline.lanes import load_timeline
    from rlinf.cli.timeline.summary import summarise

    try:
        timeline = load_timeline(args.folder)
        first, last = _window(args.steps, len(timeline.steps))
        summary = summarise(timeline, first, last)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = Path(args.chrome) if args.chrome else Path(args.folder) / "trace.json"
    write_chrome_trace(timeline, path)
    print_summary(summary)
    print(f"timeline: {path}; open it at https://ui.perfetto.dev")
    return 0


def _window(text: str, count: int) -> tuple[int, int | None]:
    first, _, last = text.partition(":")
    if not (first or "0").isdigit() or not (last or "0").isdigit():
        raise ValueError(f"--steps {text!r} must look like 1:, 0:5 or :3")
    begin = int(first or 0)
    # A run of one step is explained by that step.
    return (begin if count > begin else 0), (int(last) if last else None)


def print_summary(summary: Summary) -> None:
    """One row per process, then the critical path."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = title_of(summary)
    table = Table(title=title, title_justify="left")
    for name in ("process", "busy", "with", "waiting", "for", "idle"):
        table.add_column(name, justify="right" if name in ("busy", "waiting", "idle") else "left")
    for name, lane in summary.lanes.items():
        table.add_row(name, *row(lane, summary.seconds))
    console.print(table)
    console.print("critical path:")
    ranked = sorted(summary.path.items(), key=lambda entry: -entry[1])
    for (group, what), seconds in ranked[:8]:
        share = percent(seconds / summary.seconds)
        console.print(f"  {share:>6}  {what} of {group}", highlight=False)
    console.print(summary.sentence, highlight=False)


def title_of(summary: Summary) -> str:
    """Return how many steps there are, and how long they take."""
    return f"{number(summary.steps)} steps, {number(summary.seconds / summary.steps, 3)} s each"


def row(lane: LaneSummary, total: float) -> tuple[str, str, str, str, str]:
    """Return the shares of the time, and the greatest parts of each."""
    return (
        percent(sum(lane.busy.values()) / total, 0),
        _parts(lane.busy, total),
        percent(sum(lane.waiting.values()) / total, 0),
        _parts(lane.waiting, total),
        percent(lane.idle / total, 0),
    )


def _parts(seconds: dict[str, float], total: float) -> str:
    ranked = sorted(seconds.items(), key=lambda entry: -entry[1])[:2]
    worth_saying = [(name, value / total) for name, value in ranked if value > 0.005 * total]
    return ", ".join(f"{name} {percent(share, 0)}" for name, share in worth_saying)
