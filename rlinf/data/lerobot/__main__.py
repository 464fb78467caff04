"""`python -m rlinf.data.lerobot`: look at LeRobot datasets, and make new ones from them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf.data.lerobot.dataset_statistics import write_dataset_statistics
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.tools import merge, select, summarize, trim


def _range(text: str) -> tuple[int, tuple[int, int]]:
    try:
        number, start, stop = map(int, text.split(":"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not EPISODE:FIRST:STOP, such as 3:0:50"
        ) from error
    return number, (start, stop)


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as `0,3,10-19`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            numbers += range(int(first), int(last or first) + 1)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of episodes, such as 0,3,10-19"
            ) from error
    return numbers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rlinf.data.lerobot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="say what a dataset holds")
    info.add_argument("source")
    info.add_argument("--json", action="store_true", help="as JSON")
    statistics = commands.add_parser(
        "statistics", help="write statistics of datasets as OpenVLA keeps them"
    )
    statistics.add_argument("source", nargs="+", help="folders; their names become unnorm_key")
    statistics.add_argument("--out", required=True, help="file, or folder that gets it")
    statistics.add_argument(
        "--unscaled", type=int, nargs="*", default=[], help="numbers of an action to leave as is"
    )
    for name, text in (
        ("merge", "write several datasets into one, v3.0; one source is converted"),
        ("select", "write some episodes into a new dataset"),
        ("trim", "write a dataset with some episodes cut"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("source", nargs="+" if name == "merge" else None)
        command.add_argument("--out", required=True, help="folder of the new dataset")
        if name == "select":
            command.add_argument("--episodes", required=True, type=_numbers, help="0,3,10-19")
        if name == "trim":
            command.add_argument(
                "--frames", required=True, nargs="+", type=_range, metavar="EPISODE:FIRST:STOP"
            )
        command.add_argument("--data-files-size-in-mb", type=float)
        command.add_argument("--video-files-size-in-mb", type=float)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        if given.command == "info":
            _show(summarize(given.source), given.json)
            return 0
        if given.command == "statistics":
            folders = {Path(source).resolve().name: source for source in given.source}
            print(write_dataset_statistics(folders, given.out, given.unscaled))
            return 0
        names = ("data_files_size_in_mb", "video_files_size_in_mb")
        limits = {name: value for name in names if (value := getattr(given, name)) is not None}
        if given.command == "merge":
            out = merge(given.source, given.out, **limits)
        elif given.command == "select":
            out = select(given.source, given.out, given.episodes, **limits)
        else:
            out = trim(given.source, given.out, dict(given.frames), **limits)
    except (DatasetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    summary = summarize(out)
    print(f"{out}: {summary['episodes']} episodes, {summary['frames']} frames")
    return 0


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    for key in ("root", "version", "robot_type", "fps", "episodes", "frames", "seconds", "bytes"):
        print(f"{key:12} {summary[key]}")
    for task, count in summary["tasks"].items():
        print(f"task         {task} ({count} episodes)")
    for name, feature in summary["features"].items():
        print(f"feature      {name}: {feature['dtype']} {feature['shape']}")


if __name__ == "__main__":
    sys.exit(main())
