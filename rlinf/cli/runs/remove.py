"""`rlinf runs rm`: say what would be deleted, ask, and delete it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rlinf.cli.runs.entry import read_entry
from rlinf.cli.runs.removal import Refused, Removal, plan_removal, remove, repair_latest
from rlinf.cli.runs.words import score_words, size_words
from rlinf.utils.runs.folders import CHECKPOINTS, shown

_PARTS = 4
"""Names of a run's content that are shown; the rest is added up."""


def run(args: argparse.Namespace) -> int:
    """Delete runs; if one is refused, none is deleted.

    Returns:
        0; 1 if something was refused, could not be deleted, or the user said no; 2 if nobody
        can be asked.
    """
    planned, refused = _plan(args.runs, args.only_checkpoints)
    if refused:
        print("\n".join(f"rlinf runs rm: {why}" for why in refused), file=sys.stderr)
        if len(args.runs) > 1:
            print("rlinf runs rm: so nothing was deleted", file=sys.stderr)
        return 1
    if not planned:
        print("no checkpoints to delete")
        return 0
    if not args.yes and not sys.stdin.isatty():
        print(
            "rlinf runs rm: standard input is no terminal, so nobody can be asked; add --yes to "
            "delete without asking",
            file=sys.stderr,
        )
        return 2
    print("\n".join(line for removal in planned for line in plan_lines(removal)))
    if not args.yes and not _agrees(planned):
        print("nothing was deleted")
        return 1
    return _delete_all(planned)


def plan_lines(removal: Removal) -> list[str]:
    """Return what would be deleted of a run, as lines."""
    entry = read_entry(removal.run)
    facts = [entry.status, score_words(entry.score)]
    facts += [f"tags: {', '.join(entry.tags)}"] if entry.tags else []
    lines = [f"{shown(removal.run)}  ({', '.join(fact for fact in facts if fact)})"]
    parts = list(removal.sizes.items())
    named = [f"{name} {size_words(size)}" for name, size in parts[:_PARTS]]
    rest = sum(size for _, size in parts[_PARTS:])
    named += [f"others {size_words(rest)}"] if len(parts) > _PARTS else []
    lines.append(f"  {size_words(removal.size)}: {', '.join(named)}")
    if removal.elsewhere is not None:
        lines.append(f"  its checkpoints are in {shown(removal.elsewhere)}")
    elif (removal.run / CHECKPOINTS).is_symlink():
        target = (removal.run / CHECKPOINTS).readlink()
        lines.append(f"  {CHECKPOINTS} is a link to {target}, which stays")
    return lines


def _plan(texts: Sequence[str], only_checkpoints: bool) -> tuple[list[Removal], list[str]]:
    planned: dict[object, Removal] = {}
    refused = []
    for text in texts:
        try:
            removal = plan_removal(text, only_checkpoints)
        except (Refused, OSError) as error:
            refused.append(str(error))
        else:
            if removal.sizes:
                planned.setdefault(removal.run.resolve(), removal)
    return list(planned.values()), refused


def _agrees(planned: list[Removal]) -> bool:
    size = sum(removal.size for removal in planned)
    count = f"{len(planned)} run{'s' if len(planned) > 1 else ''}"
    what = f"the checkpoints of {count}" if planned[0].only_checkpoints else count
    try:
        answer = input(f"delete {what}, {size_words(size)} ({size:,} bytes)? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        print()
        return False
    return answer.strip().lower() in ("y", "yes")


def _delete_all(planned: list[Removal]) -> int:
    failed = False
    for removal in planned:
        try:
            remove(removal)
        except (Refused, OSError) as error:
            failed = True
            print(f"rlinf runs rm: {shown(removal.run)} was not deleted: {error}", file=sys.stderr)
            continue
        what = "the checkpoints of " if removal.only_checkpoints else ""
        print(f"deleted {what}{shown(removal.run)}, {size_words(removal.size)}")
    for experiment in dict.fromkeys(removal.run.parent for removal in planned):
        link = repair_latest(experiment)
        if link is not None and link.is_symlink():
            print(f"{shown(link)} now points to {link.readlink()}")
        elif link is not None:
            print(f"{shown(link)} is gone as well: no run is left")
    return 1 if failed else 0
