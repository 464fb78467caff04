"""`rlinf runs list`: which runs there are, what became of them, and how good they are."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from rlinf.cli.runs import words
from rlinf.cli.runs.entry import RunEntry, read_entry
from rlinf.cli.runs.find import find_runs
from rlinf.cli.runs.names import COMMANDS, DEFAULT
from rlinf.cli.runs.table import Column, set_table, terminal_width
from rlinf.utils.runs.folders import shown
from rlinf.utils.runs.tags import check_tag


def run(args: argparse.Namespace) -> int:
    """Print the list.

    Returns:
        0, also if there is no run; 1 if a folder is not there.
    """
    try:
        wanted = [check_tag(tag) for tag in args.tag]
        folders = gather(args.folders or [DEFAULT], given=bool(args.folders))
    except ValueError as error:
        print(f"rlinf runs: {error}", file=sys.stderr)
        return 1
    entries = [read_entry(folder) for folder in folders]
    entries = [entry for entry in entries if not args.status or entry.status in args.status]
    entries = [entry for entry in entries if set(wanted) <= set(entry.tags)]
    entries.sort(key=lambda entry: (entry.began, str(entry.folder)))
    if args.last is not None:
        entries = entries[-args.last :]
    if args.json:
        print(json.dumps([entry.to_json() for entry in entries], indent=2))
    elif entries:
        print("\n".join(list_lines(entries, terminal_width())))
    else:
        print(_nothing(args, len(folders)), file=sys.stderr)
    return 0


def gather(texts: Iterable[str], given: bool = True) -> list[Path]:
    """Return the runs in some folders, each once.

    Args:
        texts: the folders.
        given: whether the user named them; otherwise they need not be there.

    Raises:
        ValueError: one of them is not there.
    """
    found: dict[Path, Path] = {}
    for text in texts:
        if not Path(text).is_dir():
            if given:
                raise ValueError(_no_folder(text))
            continue
        for folder in find_runs(Path(text), unreadable=_warn):
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def list_lines(entries: list[RunEntry], width: int | None) -> list[str]:
    """Return the list as lines, one or two for each run.

    Args:
        entries: runs, in the order to show.
        width: characters of a line; None for no limit.
    """
    rows = [
        {
            "when": words.when_words(entry.began),
            "recipe": entry.recipe,
            "status": entry.status,
            "step": words.count_words(entry.step),
            "score": words.score_words(entry.score),
            "speed": words.speed_words(entry.speed),
            "wall time": words.span_words(entry.wall_seconds),
            "tags": ", ".join(entry.tags),
            "folder": str(shown(entry.folder)),
        }
        for entry in entries
    ]
    columns = [
        Column("when", redundant=all(_names_time(entry) for entry in entries)),
        Column("recipe", redundant=all(entry.recipe in entry.folder.parts for entry in entries)),
        Column("status"),
        Column("step", right=True, rank=1),
        Column("score"),
        Column("speed", right=True, rank=2),
        Column("wall time", right=True, rank=3),
        Column("tags"),
        Column("folder"),
    ]
    lines, lost = set_table(columns, rows, width)
    if lost:
        lines.append(f"left out for lack of room: {', '.join(lost)}; --json has everything")
    return lines


def _names_time(entry: RunEntry) -> bool:
    """Return whether the name of a run's folder says when it began."""
    return entry.folder.name.startswith(words.when_words(entry.began)[:10].replace("-", ""))


def _no_folder(text: str) -> str:
    near = difflib.get_close_matches(text, COMMANDS, n=1)
    meant = f"; did you mean `rlinf runs {near[0]}`?" if near else "."
    return (
        f"{text} is neither a folder nor one of the commands {', '.join(COMMANDS)}{meant} "
        "Give a folder of logs, of an experiment or of a run."
    )


def _nothing(args: argparse.Namespace, unfiltered: int) -> str:
    where = ", ".join(args.folders or [DEFAULT])
    if unfiltered:
        return f"none of the {unfiltered} runs in {where} is like that"
    if not args.folders and not Path(DEFAULT).is_dir():
        return (
            f"there is no folder {DEFAULT} here, where `rlinf train` writes by default; name "
            "another one: rlinf runs FOLDER"
        )
    return f"no runs in {where}"


def _warn(error: OSError) -> None:
    print(f"warning: {error.filename} is left out: {error.strerror}", file=sys.stderr)
