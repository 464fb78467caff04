"""What a check of `rlinf doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
"""`fail` breaks runs, `warn` may slow or surprise, `ok` needs nothing."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        status: How it is.
        found: What was found.
        fix: What to do about it; empty if nothing is to be done.
    """

    name: str
    status: Status
    found: str
    fix: str = ""


def gib(size: float) -> str:
    """Write a number of bytes in GiB, or in MiB when it is small."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
