"""`rlinf stop RUN`: ask a run that is under way to end after its step; twice, at once."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.cli.run_argument import ABOUT, run_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlinf.runners.requests import Holder

LOOK_SECONDS = 0.2
"""Between two looks at what came of a request."""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "stop",
        help="let a run save and end after its current step",
        description="Let a run end after its current step, as Ctrl-C does: it saves, and can go on "
        "later. A second time, or with --now, it ends at once. The run may be on another host, if "
        "its folder is on a disk that both see.",
    )
    parser.add_argument("folder", type=run_argument, help=ABOUT)
    parser.add_argument(
        "--now", action="store_true", help="do not wait for the step; only on the run's own host"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="ask, and do not wait until the run has ended"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask, wait, and say what came of it.

    Returns:
        0 if the run has stopped or finished, or was only asked; 1 if it was not running, or failed.
    """
    from rlinf.runners.requests import STOP, NotRunning, ask, has_ended, is_asked, running

    folder = Path(args.folder)
    try:
        holder = running(folder)
        asked = is_asked(folder, STOP, holder)
        if args.now or asked:
            _signal(folder, holder)
            told = f"told {name_of(holder)} to stop at once"
        else:
            ask(folder, STOP, holder)
            told = f"asked {name_of(holder)} to stop after its step; again stops it at once"
    except (NotRunning, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(told, flush=True)
    if args.no_wait:
        return 0
    if not wait(lambda: has_ended(folder, holder), "waiting for its end"):
        return 0
    return tell_end(folder)


def name_of(holder: Holder) -> str:
    """Return a run in words."""
    return f"the run of process {holder.get('pid', '?')} on {holder.get('host', '?')}"


def wait(happened: Callable[[], Any], text: str) -> bool:
    """Wait until something has happened, and show it; Ctrl-C ends the wait, not the request.

    Returns:
        Whether it has happened.
    """
    from rlinf.utils.phases import LiveLine

    try:
        with LiveLine(text):
            while not happened():
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        print("not waiting any more; the request stands", file=sys.stderr)
        return False
    return True


def tell_end(folder: Path) -> int:
    """Say what became of a run that has ended; return the exit code."""
    from rlinf.utils.runs import read_summary
    from rlinf.utils.runs.folders import shown
    from rlinf.utils.runs.summary import EVALUATED, FINISHED, STOPPED

    facts = read_summary(folder) or {}
    status, step = facts.get("status"), facts.get("global_step")
    error = f": {facts['error']}" if facts.get("error") else ""
    after = "" if step is None else f" after step {step}"
    print(f"{shown(folder.absolute())} is {status}{after}{error}")
    if facts.get("checkpoint"):
        print(f"checkpoint: {shown(Path(facts['checkpoint']))}")
    return 0 if status in (STOPPED, FINISHED, EVALUATED) else 1


def _signal(folder: Path, holder: Holder) -> None:
    """Let a run stop at once: two signals, of which each run takes the second as that.

    Raises:
        NotRunning: it runs on another host.
    """
    from rlinf.runners.requests import NotRunning

    if holder.get("host") != socket.gethostname():
        raise NotRunning(
            f"{name_of(holder)} can be stopped at once only there: `rlinf stop --now {folder}`"
        )
    for signum in (signal.SIGTERM, signal.SIGINT):
        try:
            os.kill(holder["pid"], signum)
        except ProcessLookupError:
            # The first one has ended it.
            return
