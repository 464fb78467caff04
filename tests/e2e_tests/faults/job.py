"""A job with the shape of training: real workers, the real runner, real channels and checkpoints.

Only what the workers compute is small.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from rlinf.runners.base_runner import BaseRunner
from rlinf.scheduler import Channel, WorkerGroup
from tests.e2e_tests.faults.parts import Fault, strike

STEPS = 3


class Loop(BaseRunner):
    """Rolls out through channels, trains, saves every step."""

    max_steps = STEPS

    def __init__(self, cfg: Any, team: WorkerGroup, fault: Fault | None) -> None:
        super().__init__(cfg, [team], ())
        self._team = team
        self._fault = fault
        self.totals_seen: list[int] = []

    def _reach(self, phase: str) -> None:
        """Where the driver, or a keeper of channels, is struck."""
        fault = self._fault
        if fault is None or fault.phase != phase or (phase != "start" and self.global_step != 1):
            return
        if fault.role == "driver":
            strike(fault.kind)
        elif fault.role == "keeper" and fault.kind in ("exception", "memory"):
            self._channels[0].put("anything", key=fault.kind)
        elif fault.role == "keeper":
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault.kind]
            os.kill(self.keeper_pid(), number)

    def keeper_pid(self) -> int:
        """Process that keeps the channels."""
        workers = self._team.launched.cluster._server.state.workers
        (name,) = [name for name in workers if name.startswith("ChannelKeeper")]
        return workers[name].pid

    def build_workers(self) -> None:
        self._channels = [Channel.create("observations", maxsize=4), Channel.create("halves")]
        self._reach("start")
        self._team.init_worker().wait()

    def train_step(self) -> dict[str, float]:
        # What was saved before the fault is there, however busy the machine is.
        self.checkpoints.poll(wait=True)
        calls = self._team.play(*self._channels)
        self._reach("rollout")
        self.totals_seen.append(calls.wait()[-1])
        self._reach("training")
        self._team.train().wait()
        self._team.step_is_over().wait()
        self._reach("save")
        return {}

    def evaluate(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"totals": list(self.totals_seen)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.totals_seen = list(state["totals"])

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        return {}

    def totals(self, training_seconds: float) -> dict[str, Any]:
        return {}

    def farewell(self, final: dict[str, float]) -> None:
        pass
