"""A job with the shape of training, light enough to be struck many times.

Env, rollout and actor are real workers under the real runner, with real channels and checkpoints;
only what they compute is small.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.runners.base_runner import BaseRunner
from rlinf.scheduler import Channel, Worker, WorkerGroup
from rlinf.scheduler.channel.keeper import ChannelKeeper
from rlinf.workers.checkpointed import Checkpointed, Job

STEPS = 3
ITEMS = 20
ROLES = ("env", "rollout", "actor")
"""Of ranks 0, 1 and 2 of the group: started together, they are there sooner."""


class Fault(NamedTuple):
    """What happens to whom, and when."""

    role: str
    kind: str
    phase: str


def strike(kind: str) -> None:
    """Lets a fault happen to this process."""
    if kind == "exception":
        raise RuntimeError("struck by a test")
    if kind == "memory":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
        try:
            bytearray(1 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


class Part(Checkpointed, Worker):
    """A role that a fault may befall in the second step, or at the start."""

    def __init__(self, fault: Fault | None) -> None:
        super().__init__()
        self._role, self._fault = ROLES[self._rank], fault
        self._steps = 0

    def _reach(self, phase: str) -> None:
        fault = self._fault
        if fault is None or (fault.role, fault.phase) != (self._role, phase):
            return
        if phase == "start" or self._steps == 1:
            strike(fault.kind)

    def init_worker(self) -> None:
        self._reach("start")

    def play(self, observations: Channel, halves: Channel) -> int:
        """Passes items on, env to rollout to actor; the fault comes when half are through."""
        total = 0
        source = {"rollout": observations, "actor": halves}.get(self._role)
        target = {"env": observations, "rollout": halves}.get(self._role)
        for number in range(ITEMS):
            if number == ITEMS // 2:
                self._reach("rollout")
            item = number if source is None else source.get()
            total += item
            if target is not None:
                target.put(item)
        return total

    def train(self) -> None:
        self._reach("training")

    def step_is_over(self) -> None:
        self._steps += 1

    def _snapshot(self, folder: Path) -> Job:
        steps = self._steps
        return lambda: self._write(folder / f"{self._role}_{self._rank}", steps)

    def _write(self, path: Path, steps: int) -> None:
        path.write_text("half of it")
        if steps == 2 and self._fault is not None:
            if (self._fault.role, self._fault.phase) == (self._role, "save"):
                strike(self._fault.kind)
        path.write_text(f"{steps}")

    def _restore(self, folder: Path) -> list[str]:
        self._steps = int((folder / f"{self._role}_{self._rank}").read_text())
        return []


class MortalKeeper(ChannelKeeper):
    """A keeper of channels that fails when it is given an item under the name of a fault."""

    def _on_put(self, who: str, connection: Any, fields: Any, body: Any) -> None:
        if fields[2] in ("exception", "memory"):
            strike(fields[2])
        super()._on_put(who, connection, fields, body)


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
