"""`rlinf logs RUN`: what the workers of a run logged, merged by time."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rlinf.cli.run_argument import ABOUT, run_argument
from rlinf.cli.worker_logs import (
    LEVELS,
    Entry,
    LogFile,
    Selection,
    find_logs,
    merged,
    parse_since,
)

_COLOURS = {"DEBUG": "\033[2m", "WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
_LOOK_SECONDS = 0.3


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "logs",
        help="show what the workers of a run logged",
        description="Show what the workers of a run logged and printed, merged by time.",
    )
    parser.add_argument("folder", type=run_argument, help=ABOUT)
    parser.add_argument(
        "--worker", metavar="NAME", help="a worker (EnvGroup:0), a group (EnvGroup) or Env*"
    )
    parser.add_argument(
        "--level",
        metavar="L",
        type=str.upper,
        choices=LEVELS,
        default="DEBUG",
        help="the lowest level to show: %(choices)s",
    )
    parser.add_argument(
        "--since", metavar="WHEN", help="how long ago (10m, 2h), or a time (14:05) or date"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what is logged, until the run ends"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the entries."""
    try:
        since = parse_since(args.since) if args.since else ""
        files = {n: LogFile(n, p) for n, p in find_logs(args.folder, args.worker).items()}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    selection = Selection(args.level, since)
    show(merged(files.values(), selection))
    if args.follow:
        follow(args.folder, args.worker, files, selection)
    return 0


def follow(
    folder: str,
    worker: str | None,
    files: dict[str, LogFile],
    selection: Selection,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show what is added, also by workers that start later, until the run ends or Ctrl-C.

    Args:
        folder: of the run.
        worker: whose logs, None for all.
        files: those that are known, read so far.
        selection: what is wanted.
        sleep: how to wait between two looks.
    """
    try:
        while True:
            # In this order: what is written before the end is shown.
            ended = _has_ended(Path(folder))
            for name, path in find_logs(folder, worker).items():
                files.setdefault(name, LogFile(name, path))
            show(merged(files.values(), selection))
            if ended:
                return
            sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return


def _has_ended(folder: Path) -> bool:
    from rlinf.utils.runs.summary import RUNNING, status_of

    return status_of(folder) not in (None, RUNNING)


def show(entries: Iterable[Entry]) -> None:
    """Print entries, coloured on a terminal."""
    coloured = sys.stdout.isatty()
    for entry in entries:
        colour = _COLOURS.get(entry.level) if coloured else None
        print(f"{colour}{entry.text}\033[0m" if colour else entry.text)
    sys.stdout.flush()
