"""Workers of a job with the shape of training, light enough to be struck many times.

They import no torch, so that their processes are there soon.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.scheduler import Channel, Worker
from rlinf.scheduler.channel.keeper import ChannelKeeper
from rlinf.workers.checkpointed import Checkpointed, Job

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
