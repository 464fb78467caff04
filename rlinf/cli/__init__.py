"""The console command `rlinf`.

Each sub-command is a module with `add_parser` and `run`. The modules import what they need when
they run, so that `rlinf --help` answers at once.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from rlinf import __version__
from rlinf.cli import (
    bisect,
    chat,
    check,
    check_env,
    checkpoint,
    collect,
    completion,
    doctor,
    export,
    fetch,
    logs,
    new,
    report,
    runs,
    serve,
    stop,
    testbed,
    trace,
    train,
    verify,
)

_EXAMPLES = """\
examples:
  rlinf train --list                   # what can be run
  rlinf train metaworld_ppo_mlp        # a run; what it writes is in logs/metaworld_ppo_mlp/latest
  rlinf eval logs/metaworld_ppo_mlp    # its policy, without training
  rlinf runs                           # which runs there are, and how good they are
  rlinf report logs/metaworld_ppo_mlp  # one page of all that it wrote
  rlinf check metaworld_ppo_mlp        # is a configuration right, and does it fit this machine?
  rlinf doctor                         # is this machine set up?
"""


class _Parser(argparse.ArgumentParser):
    """A parser that suggests what a mistyped command may mean."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and what was probably meant."""
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if found:
            known = re.findall(r"[\w-]+", found.group(2))
            near = difflib.get_close_matches(found.group(1), known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ";"
            message = f"there is no command {found.group(1)!r}{meant} Commands: {', '.join(known)}"
        super().error(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit code: 0 for success, 1 if what was checked or run failed, 2 for wrong usage.
    """
    parser = build_parser()
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [completion.COMPLETE]:
        return completion.complete(parser, words[1:])
    args = parser.parse_args(words)
    if not hasattr(args, "run"):
        parser.print_help()
        return 0
    try:
        return args.run(args)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        sys.stderr.close()
        return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command and all its sub-commands."""
    parser = _Parser(
        prog="rlinf",
        description="Distributed reinforcement learning for embodied policies, reasoning models "
        "and agents.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rlinf {__version__}")
    # Choices of a command's own options are not commands: its parser is a plain one.
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=argparse.ArgumentParser
    )
    train.add_parser(commands)
    train.add_eval_parser(commands)
    collect.add_parser(commands)
    export.add_parser(commands)
    chat.add_parser(commands)
    serve.add_parser(commands)
    verify.add_parser(commands)
    check.add_parser(commands)
    check_env.add_parser(commands)
    doctor.add_parser(commands)
    trace.add_parser(commands)
    bisect.add_parser(commands)
    runs.add_parser(commands)
    report.add_parser(commands)
    logs.add_parser(commands)
    stop.add_parser(commands)
    checkpoint.add_parser(commands)
    testbed.add_parser(commands)
    fetch.add_parser(commands)
    new.add_parser(commands)
    completion.add_parser(commands)
    return parser
