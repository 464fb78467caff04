"""The console command `rlinf`.

Each sub-command is a module with `add_parser` and `run`. The modules import what they need when
they run, so that `rlinf --help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rlinf import __version__
from rlinf.cli import (
    bisect,
    check,
    check_env,
    doctor,
    export,
    fetch,
    logs,
    report,
    trace,
    train,
    verify,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit code: 0 for success, 1 if what was checked or run failed, 2 for wrong usage.
    """
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        sys.stderr.close()
        return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command and all its sub-commands."""
    parser = argparse.ArgumentParser(
        prog="rlinf",
        description="Distributed reinforcement learning for embodied policies, reasoning models "
        "and agents.",
    )
    parser.add_argument("--version", action="version", version=f"rlinf {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    train.add_parser(commands)
    train.add_eval_parser(commands)
    export.add_parser(commands)
    verify.add_parser(commands)
    check.add_parser(commands)
    check_env.add_parser(commands)
    doctor.add_parser(commands)
    trace.add_parser(commands)
    bisect.add_parser(commands)
    report.add_parser(commands)
    logs.add_parser(commands)
    fetch.add_parser(commands)
    return parser
