"""`rlinf checkpoint RUN`: ask a run that is under way to save at the end of its step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rlinf.cli.run_argument import ABOUT, run_argument
from rlinf.cli.stop import name_of, tell_end, wait


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "checkpoint",
        help="let a run save at the end of its current step",
        description="Let a run write a checkpoint at the end of its current step, and go on. The "
        "run may be on another host, if its folder is on a disk that both see.",
    )
    parser.add_argument("folder", type=run_argument, help=ABOUT)
    parser.add_argument(
        "--no-wait", action="store_true", help="ask, and do not wait until it is written"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask, wait, and say where the checkpoint is.

    Returns:
        0 if it is there, or was only asked for; 1 if the run was not running, has ended before, or
        could not save.
    """
    from rlinf.runners.requests import CHECKPOINT, NotRunning, ask, has_ended, running

    folder = Path(args.folder)
    try:
        holder = running(folder)
        request = ask(folder, CHECKPOINT, holder)
    except (NotRunning, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"asked {name_of(holder)} for a checkpoint at the end of its step", flush=True)
    if args.no_wait:
        return 0
    found: dict[str, Any] = {}

    def has_answered() -> bool:
        # In this order: a run that ends has answered before.
        ended = has_ended(folder, holder)
        found.update(request.answer() or {})
        return bool(found) or ended

    if not wait(has_answered, "waiting for the checkpoint"):
        return 0
    return _tell(folder, found)


def _tell(folder: Path, found: dict[str, Any]) -> int:
    from rlinf.utils.runs.folders import shown

    if not found:
        print("error: the run has ended without it", file=sys.stderr)
        tell_end(folder)
        return 1
    if found["path"] is None:
        print(
            f"error: step {found['step']} could not be saved; the run's own output says why, and "
            "training goes on",
            file=sys.stderr,
        )
        return 1
    print(f"checkpoint: {shown(Path(found['path']))}")
    return 0
