"""What a run shows while it works: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from rlinf.utils.run_state import RunState, ask, span

_LINE_SECONDS = 2.0
_SILENCE_SECONDS = 60.0
"""How often plain lines come at most, and at least."""


class Progress:
    """Shows how far a run is, what it waits for and how full its queues are.

    Nothing of it needs the workers: the facts come with each step, the rest is looked up in this
    process, at most twice a second, in a thread.

    Args:
        total: steps of the run.
        mode: "auto" (a live view on a terminal, else plain lines), "plain" or "off".
        waiting: tells what the run waits for, in words, the longest wait first.
        queues: tells how full the queues are, in words.
        unit: what a step is called.
    """

    def __init__(
        self,
        total: int,
        mode: str = "auto",
        waiting: Callable[[], Sequence[str]] = tuple,
        queues: Callable[[], Sequence[str]] = tuple,
        unit: str = "step",
    ):
        self._state = RunState(total, unit)
        self._view = None
        self._lines = None
        if mode == "plain" or (mode == "auto" and not sys.stderr.isatty()):
            self._lines = _PlainLines(self._state, waiting)
        elif mode != "off":
            # Loads a package that plain lines do not need.
            from rlinf.utils.live_view import LiveView

            self._view = LiveView(self._state, waiting, queues)

    def show(self, step: int, facts: Mapping[str, str]) -> None:
        """Show the state after a step."""
        self._state.advance(step, facts)
        if self._lines is not None:
            self._lines.show()

    def close(self) -> None:
        """End the display; a second time does nothing."""
        for part in (self._view, self._lines):
            if part is not None:
                part.close()


class _PlainLines:
    """Lines for files and batch systems; a run that is silent for long says what it waits for."""

    def __init__(self, state: RunState, waiting: Callable[[], Sequence[str]]):
        self._state = state
        self._waiting = waiting
        self._last = 0.0
        self._spoke = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._break_silence, name="progress", daemon=True).start()

    def show(self) -> None:
        state, now = self._state, time.monotonic()
        if state.step != state.total and now - self._last <= _LINE_SECONDS:
            return
        self._last = now
        note = "  ".join(f"{name} {value}" for name, value in state.facts.items())
        left = f"  left {span(state.left)}" if state.left else ""
        self._say(f"{state.unit} {state.step}/{state.total}  {note}{left}")

    def _break_silence(self) -> None:
        while not self._ended.wait(max(0.1, self._spoke + _SILENCE_SECONDS - time.monotonic())):
            if time.monotonic() - self._spoke >= _SILENCE_SECONDS:
                what = ", ".join(ask(self._waiting)) or "nobody: the driver itself is busy"
                self._say(f"{self._place()}  waiting for {what}")

    def _place(self) -> str:
        step, unit = self._state.step, self._state.unit
        return f"{unit} {step}/{self._state.total} is done" if step else f"in the first {unit}"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(f"[{self._state.passed:6.1f} s] {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._ended.set()
