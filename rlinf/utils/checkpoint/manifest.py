"""The manifest of a checkpoint, read as what a stranger may have written."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1
_HASH = re.compile(r"[0-9a-f]{64}")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another run."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint.

    Args:
        folder: its folder.

    Raises:
        CheckpointError: there is none, or it is not one; says what is wrong with it.
    """
    place = folder / MANIFEST
    if place.exists() and not place.is_file():
        # A pipe would be waited for.
        raise CheckpointError(f"{place} is not a file; use another checkpoint")
    try:
        manifest = json.loads(place.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {MANIFEST}: it was not written to its end; use another checkpoint"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{place} is damaged: it is not JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise _wrong(folder, "is", manifest, "a mapping")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {manifest.get('format')!r}, this version reads {FORMAT}"
        )
    step, score = manifest.get("step"), manifest.get("score")
    if type(step) is not int or step < 0:
        raise _wrong(folder, "has step", step, "a whole number, 0 or more")
    if score is not None and type(score) not in (int, float):
        raise _wrong(folder, "has score", score, "a number or null")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise _wrong(folder, "has files", files, "a mapping of names to size and sha256")
    for name, facts in files.items():
        _check_name(folder, name)
        _check_facts(folder, name, facts)
    return manifest


def _check_name(folder: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise _wrong(folder, "names the file", name, "a path inside the checkpoint, without '..'")


def _check_facts(folder: Path, name: str, facts: Any) -> None:
    size = facts.get("size") if isinstance(facts, dict) else None
    digest = facts.get("sha256") if isinstance(facts, dict) else None
    if type(size) is not int or size < 0:
        raise _wrong(folder, f"has, for {name}, the size", size, "a whole number, 0 or more")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise _wrong(folder, f"has, for {name}, the sha256", digest, "64 hexadecimal digits")


def _wrong(folder: Path, what: str, found: Any, allowed: str) -> CheckpointError:
    return CheckpointError(
        f"the {MANIFEST} of {folder} {what} {str(found)[:200]!r}; it must be {allowed}. It is "
        "damaged, or was not written by this program: use another checkpoint"
    )
