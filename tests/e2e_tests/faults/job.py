"""A job with the shape of training: real workers, the real runner, real channels and checkpoints.

Only what the workers compute is small.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil

from rlinf.runners.base_runner import BaseRunner
from rlinf.scheduler import Channel, WorkerGroup
from tests.e2e_tests.faults.parts import ROLES, Fault, Milestones, strike

STEPS = 3
PATIENCE = 4.0
"""Seconds that a call of a process which has been stopped may take."""


class Loop(BaseRunner):
    """Rolls out through channels, trains, saves every step."""

    max_steps = STEPS

    def __init__(self, cfg: Any, team: WorkerGroup, fault: Fault | None, folder: Path) -> None:
        super().__init__(cfg, [team], ())
        self._team = team
        self._fault = fault
        self._signs = Milestones(folder)
        self._processes = folder / "processes.json"
        self._cluster = team._cluster
        self.totals_seen: list[int] = []

    def _reach(self, phase: str) -> None:
        """The driver waits for workers that are in the midst of a phase."""
        fault = self._fault
        if fault is None or not fault.is_due(phase, self.global_step):
            return
        if fault.role in ROLES and phase != "save":
            if fault.kind == "stop":
                self._signs.wait_for("struck")
                self._lose_patience()
            return
        self._signs.wait_for("halfway")
        if fault.role not in ROLES:
            self._signs.give("struck")
            self._strike(fault)
        elif fault.kind == "stop":
            self._lose_patience()
        self._signs.give("go")

    def _strike(self, fault: Fault) -> None:
        if fault.role == "driver":
            strike(fault.kind)
        elif fault.kind in ("exception", "memory"):
            self._channels[0].put("anything", key=fault.kind)
        else:
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault.kind]
            os.kill(self._pids()["keeper"], number)

    def _lose_patience(self) -> None:
        """From now on calls may not come back. Until now they had time, however busy we are."""
        self._cluster.run.timeouts["call"] = PATIENCE

    def _pids(self) -> dict[str, int]:
        workers = self._cluster._server.state.workers
        (keeper,) = [name for name in workers if name.startswith("ChannelKeeper")]
        infos = [workers[keeper], *self._team.worker_info_list]
        return {role: info.pid for role, info in zip(("keeper", *ROLES), infos, strict=True)}

    def build_workers(self) -> None:
        self._channels = [Channel.create("observations", maxsize=4), Channel.create("halves")]
        known = [(pid, psutil.Process(pid).create_time()) for pid in self._pids().values()]
        self._processes.write_text(json.dumps(known))
        self._in_start()

    def _in_start(self) -> None:
        calls = self._team.init_worker()
        self._reach("start")
        calls.wait()

    def train_step(self) -> dict[str, float]:
        # What was saved before the fault is there, however busy the machine is.
        self.checkpoints.poll(wait=True)
        self._in_rollout()
        self._in_training()
        return {}

    def _in_rollout(self) -> None:
        calls = self._team.play(*self._channels)
        self._reach("rollout")
        if self._fault is not None and self._fault[:2] == ("keeper", "stop"):
            if self._signs.time_of("struck") is not None:
                self._lose_patience()
        self.totals_seen.append(calls.wait()[-1])

    def _in_training(self) -> None:
        calls = self._team.train()
        self._reach("training")
        calls.wait()

    def _save_if_due(self, stopping: bool) -> None:
        super()._save_if_due(stopping)
        self._in_save()

    def _in_save(self) -> None:
        self._reach("save")

    def evaluate(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"totals": list(self.totals_seen)}

    def load_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        return {}

    def totals(self, training_seconds: float) -> dict[str, Any]:
        return {}

    def farewell(self, final: dict[str, float]) -> None:
        pass
