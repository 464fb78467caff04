"""The sub-commands of `rlinf runs` and their arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from rlinf.cli.run_argument import ABOUT
from rlinf.cli.runs.names import COMMANDS, DEFAULT, STATUSES

_HELP = ("-h", "--help")
_EXAMPLES = """\
examples:
  rlinf runs                                   # every run in logs, the newest last
  rlinf runs logs/metaworld_ppo_mlp --status failed
  rlinf runs compare logs/a logs/b             # what differs, and what came out
  rlinf runs tag logs/a/20261117-093012-4k2z paper
  rlinf runs rm logs/a/20261117-093012-4k2z

`rlinf runs FOLDER` is `rlinf runs list FOLDER`; type a folder that is called like a command as
./NAME.
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add `runs` to the commands."""
    parser = commands.add_parser(
        "runs",
        help="list, compare, tag and delete runs",
        usage="rlinf runs [list] [FOLDER ...]\n       rlinf runs {compare,rm,tag} RUN ...",
        description="List runs; compare, delete or tag some of them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_known_args = _listing_by_default(parser.parse_known_args)  # type: ignore[method-assign]
    own = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog="rlinf runs"
    )
    _add_list(own)
    _add_compare(own)
    _add_rm(own)
    _add_tag(own)


def _listing_by_default(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return a way to parse arguments that reads what is not a command as those of `list`."""

    def parse_known_args(args: list[str] | None = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        if not words or words[0] not in (*COMMANDS, *_HELP):
            words.insert(0, "list")
        return parse(words, namespace)

    return parse_known_args


def _add_list(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "list",
        help="list runs, the newest last; also without this word",
        description="List runs, the newest last. In the column `score`, @40 is an evaluation "
        "at step 40 on the way, of a run that has no final one.",
    )
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        help="folder of logs, of an experiment, or of a run, which is listed with its evaluations; "
        f"`{DEFAULT}` by default",
    )
    parser.add_argument(
        "--status",
        action="append",
        default=[],
        choices=STATUSES,
        help="only runs of which this became; may be given several times",
    )
    parser.add_argument(
        "--tag",
        metavar="TAG",
        action="append",
        default=[],
        help="only runs with this tag; with all of them, if it is given several times",
    )
    parser.add_argument("-n", "--last", metavar="N", type=_count, help="only the N newest ones")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.set_defaults(run=_run_list)


def _add_compare(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "compare",
        help="say which keys of runs differ, and show their results side by side",
        description="Say which configuration keys of runs differ, and show their results side by "
        "side. Runs that differ in nothing but the seed are one group.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help=ABOUT)
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.set_defaults(run=_run_compare)


def _add_rm(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "rm",
        help="delete runs, or only their checkpoints",
        description="Show what would be deleted and how much it is, ask, and delete it. A run that "
        "is running is refused, and so is what is not the folder of a run.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run")
    parser.add_argument(
        "--checkpoints",
        "--keep-metrics",
        dest="only_checkpoints",
        action="store_true",
        help="delete only the checkpoints; metrics, logs and all else stay",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=_run_rm)


def _add_tag(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "tag",
        help="give a run tags, or take them away",
        description="Give a run tags, which `rlinf runs` shows and `--tag` chooses by. Without a "
        "TAG, print those that it has.",
    )
    parser.add_argument("run_folder", metavar="RUN", help=ABOUT)
    parser.add_argument(
        "tags", metavar="TAG", nargs="*", help="a word, such as `paper` or `lr=3e-4`"
    )
    parser.add_argument(
        "--remove",
        metavar="TAG",
        nargs="*",
        help="take these tags away; or, alone, those before it",
    )
    parser.set_defaults(run=_run_tag)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs: 1, 2, ...")
    return int(text)


def _run_list(args: argparse.Namespace) -> int:
    from rlinf.cli.runs import listing

    return listing.run(args)


def _run_compare(args: argparse.Namespace) -> int:
    from rlinf.cli.runs import compare

    return compare.run(args)


def _run_rm(args: argparse.Namespace) -> int:
    from rlinf.cli.runs import remove

    return remove.run(args)


def _run_tag(args: argparse.Namespace) -> int:
    from rlinf.cli.runs import tag

    return tag.run(args)
