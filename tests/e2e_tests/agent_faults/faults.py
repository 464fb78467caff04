"""What happens to a worker of a run, and what must not be left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil

from rlinf.scheduler import Cluster
from rlinf.scheduler.cluster.shutdown import runs
from rlinf.scheduler.deadlines import Deadline
from rlinf.scheduler.failure.card import FailureCard

KINDS = ("kill", "hang", "starve")
_STARVED_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_SOON = 60.0


class Fault:
    """What happens to a worker, once in a run.

    Args:
        folder: of the test; a file there says that it has happened.
        kind: `kill`, `hang` for good, or `starve`: get no time to compute for a moment.
        phase: where.
        rank: of the worker.
        again: whether it happens in each life of the worker.
    """

    def __init__(
        self, folder: Path, kind: str, phase: str, rank: int = 0, again: bool = False
    ) -> None:
        self.folder, self.kind, self.phase, self.rank = Path(folder), kind, phase, rank
        self._again = again

    @property
    def mark(self) -> Path:
        """Has the number of the process that was struck."""
        return self.folder / "struck"

    @property
    def _place(self) -> Path:
        """Is there when the phase of one who cannot see it has come."""
        return self.folder / "its phase"

    def await_strike(self, phase: str, rank: int = 0) -> None:
        """Stay where this is until another process has been struck, if its time has come."""
        if phase != self.phase or rank != self.rank or self.mark.exists():
            return
        self._place.touch()
        deadline = Deadline(_SOON)
        while not self.mark.exists():
            assert not deadline.passed(), f"nobody was struck: {phase}"
            time.sleep(_LOOK_SECONDS)

    async def strike_when_told(self) -> None:
        """Strike this process as soon as another one waits for that."""
        while not self._place.exists():
            await asyncio.sleep(_LOOK_SECONDS)
        self.strike(self.phase, self.rank)

    def strike(self, phase: str, rank: int = 0) -> None:
        """Strike this process if its time has come."""
        if phase != self.phase or rank != self.rank or (self.mark.exists() and not self._again):
            return
        self.mark.with_suffix(".new").write_text(str(os.getpid()))
        self.mark.with_suffix(".new").rename(self.mark)
        if self.kind == "starve" and os.fork() == 0:
            # A child lets its parent go on, which cannot do so itself.
            time.sleep(_STARVED_SECONDS)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)

    def assert_gone(self) -> None:
        """Check that it has happened, and that the process is not left behind."""
        assert self.mark.exists(), "nothing was struck"
        pid = int(self.mark.read_text())
        assert not psutil.pid_exists(pid) or not runs(psutil.Process(pid))


def card_of(cluster: Cluster, error: BaseException) -> FailureCard:
    """Return the failure card that a run leaves when this error ends it."""
    card = cluster._on_driver().explain(error)
    assert card is not None
    return card
