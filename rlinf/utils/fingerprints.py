"""The fingerprints of a run: short hashes of what every step did, in a file of JSON lines.

The first line says what the run is and names its tensors. Each further line is a step, and has, in
causal order: `batch`, for each actor rank the hashes of each tensor by chunk step; `updates`, for
each optimiser step the hashes of `samples` (which ones, and in which order), `gradient` and
`weights`; and `weights`, buffers among them, as the step left them. Step 0 has only these. A hash
has eight hexadecimal digits, and hashes of a list of tensors stand one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

FILE = "fingerprints.jsonl"
DIGITS = 8
_FORMAT = 1


def short_hashes(checksums: Iterable[int]) -> str:
    """Checksums of 64 bits, signed or not, folded to 32 and written one after the other."""
    numbers = np.array([number % (1 << 64) for number in checksums], dtype=np.uint64)
    folded = (numbers ^ (numbers >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return folded.astype(">u4").tobytes().hex()


def split_hashes(text: str) -> list[str]:
    """Inverse of writing hashes one after the other."""
    return [text[i : i + DIGITS] for i in range(0, len(text), DIGITS)]


@dataclass(frozen=True)
class Fingerprints:
    """What a file says.

    Attributes:
        folder: of the run.
        facts: of the run, such as versions.
        names: of the tensors, by `gradient` and `weights`.
        steps: the record of each step, by its number.
    """

    folder: Path
    facts: dict[str, Any]
    names: dict[str, list[str]]
    steps: dict[int, dict[str, Any]]


def read_fingerprints(folder: str | Path) -> Fingerprints:
    """Read the fingerprints of a run; a last line that was cut off is left out.

    Args:
        folder: of the run.

    Raises:
        ValueError: there are none.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        if not Path(folder).is_dir():
            raise ValueError(f"{folder} is not the folder of a run: there is no such folder")
        raise ValueError(
            f"{folder} has no {FILE}: only runs with runner.deterministic: true write it"
        )
    lines = [json.loads(line) for line in _whole_lines(path)]
    if not lines or lines[0].get("format") != _FORMAT:
        raise ValueError(f"{path} is not of this version: it does not begin with format {_FORMAT}")
    head, *records = lines
    steps = {record["step"]: record for record in records}
    return Fingerprints(Path(folder), head["facts"], head["names"], steps)


class FingerprintWriter:
    """Adds steps to the file of a run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: IO[str] | None = None

    def start(self, step: int, facts: dict[str, Any], names: dict[str, list[str]]) -> bool:
        """Open the file; what an earlier run wrote of later steps than `step` is dropped.

        Returns:
            Whether it is a new file.
        """
        lines = _whole_lines(self._path) if step > 0 and self._path.is_file() else []
        kept = [line for line in lines if json.loads(line).get("step", 0) <= step]
        if not kept:
            kept = [json.dumps({"format": _FORMAT, "facts": facts, "names": names}) + "\n"]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text("".join(kept))
        os.replace(part, self._path)
        self._file = open(self._path, "a")  # noqa: SIM115 - open for the run
        return len(kept) == 1

    def write(self, step: int, record: dict[str, Any]) -> None:
        """Add the record of a step."""
        assert self._file is not None
        self._file.write(json.dumps({"step": step, **record}) + "\n")
        self._file.flush()


def _whole_lines(path: Path) -> list[str]:
    with open(path) as file:
        return [line for line in file if line.endswith("\n")]
