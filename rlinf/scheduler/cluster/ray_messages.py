"""Keeps Ray's own notices of dead workers out of the terminal: the failure card tells of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

_NOTICE = "A worker died or was killed"
_OF_RAY = re.compile(
    r"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] \S+\.cc:\d+: "  # a line of Ray's C++ code
    r"|\*\*\* SIG[A-Z]+ received at time=|PC: @ +0x|    @ +0x"  # its stack of a fatal signal
)
_PRINTER = "print_to_stdstream"


def keep_out() -> None:
    """Leave out what Ray prints of dead workers; before `ray.init`.

    Ray has no setting for it. If a version of Ray prints in another way, its notices show up again,
    and nothing else changes.
    """
    from ray._private import worker

    printer = getattr(worker, _PRINTER, None)
    if printer is not None and not hasattr(printer, "__wrapped__"):
        setattr(worker, _PRINTER, _filtered(printer))


def _filtered(printer: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(printer)
    def print_rest(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        lines = [line for line in data.get("lines", ()) if not _is_notice(line)]
        if lines:
            printer(data | {"lines": lines}, *args, **kwargs)

    return print_rest


def _is_notice(line: str) -> bool:
    return line.startswith(_NOTICE) or _OF_RAY.match(line) is not None
