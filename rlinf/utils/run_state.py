"""How far a run is, and how that is put into words."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_PACE_STEPS = 20
"""Steps that the time left is estimated from."""


@dataclass
class RunState:
    """How far a run is.

    Attributes:
        total: steps of the run.
        unit: what a step is called.
        step: steps that are done; None before the first one.
        facts: what to tell of the last step, in words, by name.
        began: when the run began, by `time.monotonic`.
    """

    total: int
    unit: str = "step"
    step: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=lambda: time.monotonic())
    _ends: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=_PACE_STEPS + 1), repr=False
    )

    def advance(self, step: int, facts: Mapping[str, str]) -> None:
        """Note that a step is done."""
        # The first step is not a measure: it also compiles, fills caches and begins episodes.
        self._ends.append((time.monotonic(), step))
        self.step, self.facts = step, facts

    @property
    def passed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step of late, with what happens between steps; None before two are done."""
        if len(self._ends) < 2:
            return None
        (begin, first), (end, last) = self._ends[0], self._ends[-1]
        return (end - begin) / (last - first) if last > first else None

    @property
    def left(self) -> float | None:
        """Seconds that the steps to come take at the pace of late; None before two are done."""
        pace = self.step_seconds
        if pace is None or self.step is None:
            return None
        return max(0.0, pace * (self.total - self.step))


def ask(source: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Return what a source says.

    One that fails is shown as such, since the run does not depend on it.
    """
    try:
        return source()
    except Exception as error:
        return [f"not known ({type(error).__name__}: {error})"]


def span(seconds: float) -> str:
    """Return a length of time for people: `7 s`, `2:05 min`, `3:10 h`, `2 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
