"""Workers with simulators that are made, played with and lost; they import no torch."""

from __future__ import annotations

import os
import signal

from rlinf.scheduler import Worker


class Simulator(Worker):
    """Stands for an `EnvWorker`: a process that was restarted has nothing to play with."""

    def __init__(self) -> None:
        super().__init__()
        self._made = 0
        self._dies = False

    @classmethod
    def restart_policy(cls) -> str | dict[str, int]:
        return {"on_failure": 5}

    def init_worker(self) -> None:
        self._made = max(self._made, 1)

    def start_over(self) -> None:
        if not self._made:
            raise RuntimeError(f"rank {self._rank} has no simulators")

    def die_next(self) -> None:
        """Ends the next rollout of this process."""
        self._dies = True

    def interact(self) -> int:
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self._made:
            raise RuntimeError(f"rank {self._rank} has no simulators")
        return self.restarts
