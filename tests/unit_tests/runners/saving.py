"""Workers that save when they are told to; they import no torch, so that they are there soon."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from rlinf.scheduler import Worker
from rlinf.workers.checkpointed import Checkpointed, Job


class Part(Checkpointed, Worker):
    """Writes its part when a file says so, fails if another one does, and dies if a third does."""

    @classmethod
    def restart_policy(cls) -> str | dict[str, int]:
        return {"on_failure": 10}

    def look_in(self, place: str) -> None:
        """Names the folder of these files.

        They are `write_<rank>`, `fail_<rank>` and `die_<rank>`; with `lack`, part of it cannot be
        saved.
        """
        self._place = Path(place)

    def _snapshot(self, folder: Path) -> Job:
        place, rank = self._place, self._rank
        if (place / f"die_{rank}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return lambda: _write(place, rank, folder)

    def _not_saved(self) -> list[str]:
        return ["the memory of it"] if (self._place / "lack").exists() else []


def _write(place: Path, rank: int, folder: Path) -> None:
    # Ends by itself, whatever becomes of the test: the process waits for this thread.
    deadline = time.monotonic() + 100
    while not (place / f"write_{rank}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if (place / f"fail_{rank}").exists():
        raise OSError(f"no room for rank {rank}")
    folder.mkdir(exist_ok=True)
    (folder / f"part_{rank}").write_text("all of it")
