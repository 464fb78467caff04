"""The live view of a run on a terminal: a few lines at its bottom, redrawn twice a second."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rlinf.utils.run_state import RunState, ask, span

_REDRAWS_PER_SECOND = 2
_QUEUE_SECONDS = 1.0


class LiveView:
    """Draws the state of a run until it is closed, whatever ends the run.

    Args:
        state: the run.
        waiting: tells what the run waits for, in words.
        queues: tells how full the queues are, in words; may take its time.
        console: where to draw; standard error by default.
    """

    def __init__(
        self,
        state: RunState,
        waiting: Callable[[], Sequence[str]],
        queues: Callable[[], Sequence[str]],
        console: Any = None,
    ):
        from rich.console import Console
        from rich.live import Live

        self._state = state
        self._waiting = waiting
        self._queues = queues
        self._filled: Sequence[str] = ()
        self._ended = threading.Event()
        self._live = Live(
            get_renderable=self._render,
            console=console or Console(stderr=True),
            refresh_per_second=_REDRAWS_PER_SECOND,
            # What is printed meanwhile stays above the view, unless it goes to a file.
            redirect_stdout=sys.stdout.isatty(),
            vertical_overflow="crop",
        )
        atexit.register(self.close)
        self._live.start()
        # A process that is killed cannot give the cursor back.
        self._live.console.show_cursor(True)
        threading.Thread(target=self._look_at_queues, name="queue depths", daemon=True).start()

    def close(self) -> None:
        """Leave the last state on the terminal and give the terminal back."""
        if not self._ended.is_set():
            self._ended.set()
            atexit.unregister(self.close)
            self._live.stop()

    def _look_at_queues(self) -> None:
        """Apart from drawing: a keeper that is slow to answer must not stop the view."""
        while not self._ended.wait(_QUEUE_SECONDS):
            self._filled = ask(self._queues)

    # -- drawing --------------------------------------------------------------------------------

    def _render(self) -> Any:
        from rich.console import Group

        lines = [self._bar(), self._facts()]
        if not self._ended.is_set():
            what = ask(self._waiting)
            lines.append(_line("waiting for", ", ".join(what) or "nobody: the driver is busy"))
            if self._filled:
                lines.append(_line("queues", ", ".join(self._filled)))
        return Group(*lines)

    def _bar(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        state = self._state
        done = state.step or 0
        row = Table.grid(padding=(0, 2))
        row.add_row(
            Text("training" if state.unit == "step" else f"{state.unit}s", style="bold"),
            ProgressBar(total=max(1, state.total), completed=done, width=36),
            Text(f"{done}/{state.total}", style="cyan"),
            Text("" if state.step_seconds is None else f"{state.step_seconds:.3g} s/{state.unit}"),
            Text(self._time(), style="dim"),
        )
        return row

    def _time(self) -> str:
        left = self._state.left
        passed = f"{span(self._state.passed)} passed"
        if left is None or self._state.step == self._state.total:
            return passed
        return f"{span(left)} left, {passed}"

    def _facts(self) -> Any:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        for name, value in self._state.facts.items():
            text.append(f"{name} ", style="dim").append(f"{value}  ", style="bold")
        first = Text(f"the first {self._state.unit} is under way", style="dim")
        return text if self._state.facts else first


def _line(label: str, text: str) -> Any:
    from rich.text import Text

    return Text(no_wrap=True, overflow="ellipsis").append(f"{label} ", style="dim").append(text)
