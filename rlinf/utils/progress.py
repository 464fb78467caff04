"""What a run shows while it works: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping


class Progress:
    """Shows how far a run is.

    Args:
        total: steps of the run.
        mode: "auto", "plain" or "off".
    """

    def __init__(self, total: int, mode: str = "auto"):
        self._total = total
        self._begin = time.monotonic()
        self._bar = None
        self._plain = mode == "plain" or (mode == "auto" and not sys.stderr.isatty())
        self._last = 0.0
        if mode != "off" and not self._plain:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task("training", total=total, note="")

    def show(self, step: int, facts: Mapping[str, str]) -> None:
        """Shows the state after a step."""
        note = "  ".join(f"{name} {value}" for name, value in facts.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
        elif self._plain and (step == self._total or time.monotonic() - self._last > 2.0):
            self._last = time.monotonic()
            passed = time.monotonic() - self._begin
            print(
                f"[{passed:6.1f} s] step {step}/{self._total}  {note}", file=sys.stderr, flush=True
            )

    def close(self) -> None:
        """Ends the display."""
        if self._bar is not None:
            self._bar.stop()
