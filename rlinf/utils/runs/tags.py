"""Tags of a run: short words its user gives it, one per line in `tags.txt` of its folder.

They are not in `summary.json`, which the run itself writes anew.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

FILE = "tags.txt"
_LONGEST = 40
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=:-]*")


def check_tag(tag: str) -> str:
    """Return a tag as it is.

    Raises:
        ValueError: it is not one.
    """
    if not _ALLOWED.fullmatch(tag) or len(tag) > _LONGEST:
        raise ValueError(
            f"{tag!r} is not a tag: one begins with a letter or digit, goes on with letters, "
            f"digits and . _ + = : - and has at most {_LONGEST} characters"
        )
    return tag


def read_tags(folder: Path) -> list[str]:
    """Return the tags of a run, in the order they were given."""
    path = folder / FILE
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def add_tags(folder: Path, tags: Iterable[str]) -> list[str]:
    """Give a run tags; one that it has already stays where it is.

    Returns:
        All its tags.

    Raises:
        ValueError: one of them is not a tag; none is given then.
    """
    known = list(dict.fromkeys([*read_tags(folder), *map(check_tag, tags)]))
    _write(folder, known)
    return known


def remove_tags(folder: Path, tags: Iterable[str]) -> list[str]:
    """Take tags from a run.

    Returns:
        The tags that are left.

    Raises:
        ValueError: the run has not got one of them; none is taken then.
    """
    gone, known = set(tags), read_tags(folder)
    strange = sorted(gone - set(known))
    if strange:
        raise ValueError(
            f"{folder} has no tag {', '.join(strange)}; it has: {', '.join(known) or 'none'}"
        )
    left = [tag for tag in known if tag not in gone]
    _write(folder, left)
    return left


def _write(folder: Path, tags: list[str]) -> None:
    path = folder / FILE
    if not tags:
        path.unlink(missing_ok=True)
        return
    part = folder / f".{FILE}.{secrets.token_hex(4)}"
    part.write_text("".join(f"{tag}\n" for tag in tags), encoding="utf-8")
    os.replace(part, path)
