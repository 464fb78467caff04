"""What a run does around its steps: each phase is shown while it lasts, and its seconds are kept.

One per process, as a run is: whoever begins a run says how much is shown, those who do something
that takes long name it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

PHASES = {
    "imports": "importing",
    "start_ray": "starting Ray",
    "launch": "launching workers",
    "build": "building simulators and models",
    "load": "loading the checkpoint",
    "supervised": "learning from worked solutions",
    "initial_evaluation": "evaluating before the training",
    "training": "training",
    "save": "saving",
    "evaluation": "evaluating",
    "video": "drawing videos",
    "stop": "stopping workers and Ray",
}
"""By the name that `summary.json` has: what is shown."""

_WORTH_A_LINE = 1.0
"""Seconds that a phase lasts at least to be told when it has ended."""
_LONG = 10.0
"""Seconds after which a phase that goes on is told, where nothing can be redrawn."""
_REDRAW = 0.25
_CLEAR = "\x1b[K"


class Phases:
    """The phases of the run of this process.

    A phase inside another is a part of that one: it is neither shown nor counted.

    Attributes:
        seconds: of each phase so far, by its name in `PHASES`.
        began: when the run began, in seconds since the epoch; None before that.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.began: float | None = None
        self._mode = "off"
        self._lock = threading.Lock()
        self._current: str | None = None

    def begin(self, mode: str, since: float | None = None) -> None:
        """Begin a run: forget what was before.

        Args:
            mode: `runner.progress`; "off" shows nothing.
            since: when its process was started, if all of it is for this run; what has passed since
                then counts as imports.
        """
        now = time.time()
        self._mode = mode
        self.began = now if since is None else since
        self.seconds = {}
        if since is not None:
            self._end("imports", now - since)

    @contextmanager
    def phase(self, name: str, live: bool = True) -> Iterator[None]:
        """Count the seconds of the block, and show that it lasts.

        Args:
            name: of `PHASES`.
            live: whether to show it while it lasts; not where something else is shown meanwhile.
        """
        assert name in PHASES, name
        with self._lock:
            inside, self._current = self._current is not None, self._current or name
        if inside:
            yield
            return
        begin = time.monotonic()
        try:
            with LiveLine(PHASES[name], self._mode if live else "off"):
                yield
        finally:
            with self._lock:
                self._current = None
            self._end(name, time.monotonic() - begin)

    def _end(self, name: str, seconds: float) -> None:
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 3)
        if self._mode != "off" and seconds >= _WORTH_A_LINE:
            _say(sys.stderr, f"{PHASES[name]} ... {seconds:.1f} s\n")


class LiveLine:
    """Shows that its block lasts: on a terminal its seconds, elsewhere a line if it takes long.

    Args:
        text: what is done.
        mode: `runner.progress`.
    """

    def __init__(self, text: str, mode: str = "auto"):
        self._text, self._mode, self._file = text, mode, sys.stderr
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LiveLine:
        if self._mode != "off":
            redraws = self._mode == "auto" and self._file.isatty()
            target = self._redraw if redraws else self._tell_once
            self._thread = threading.Thread(target=target, name="live line", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _redraw(self) -> None:
        begin = time.monotonic()
        while not self._ended.wait(_REDRAW):
            # The cursor goes back: what others print meanwhile begins a line.
            _say(self._file, f"{_CLEAR}{self._text} ... {time.monotonic() - begin:.0f} s\r")
        _say(self._file, _CLEAR)

    def _tell_once(self) -> None:
        if not self._ended.wait(_LONG):
            _say(self._file, f"{self._text} ...\n")


def _say(file: TextIO, text: str) -> None:
    # The terminal may be gone.
    with suppress(OSError):
        print(text, end="", file=file, flush=True)


phases = Phases()
"""Those of this process."""
