"""Workers of a job with the shape of training, light enough to be struck many times."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.scheduler import Channel, Worker
from rlinf.scheduler.worker.channel_keeper import ChannelKeeper
from rlinf.workers.checkpointed import Checkpointed, Job

ITEMS = 20
ROLES = ("env", "rollout", "actor")
"""Of ranks 0, 1 and 2 of the group: started together, they are there sooner."""
SOON = 100.0
"""Seconds that what has to happen may take on a busy machine."""


class Fault(NamedTuple):
    """What happens to whom, and when."""

    role: str
    kind: str
    phase: str

    def is_due(self, phase: str, steps: int) -> bool:
        """Whether this is the moment: at the start, or in the second step, and its saving."""
        return self.phase == phase and (phase == "start" or steps == (2 if phase == "save" else 1))


class Milestones:
    """Files by which the processes of a run tell each other, and the test, how far they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def give(self, name: str) -> None:
        """Says that something has happened, and when."""
        part = self._folder / f"{name}.part"
        part.write_text(str(time.monotonic()))
        part.rename(self._folder / name)

    def time_of(self, name: str) -> float | None:
        """When it happened, on the clock of this machine; None if it has not."""
        try:
            return float((self._folder / name).read_text())
        except FileNotFoundError:
            return None

    def wait_for(self, name: str) -> None:
        """Waits until it has happened."""
        deadline = time.monotonic() + SOON
        while self.time_of(name) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name!r} did not happen within {SOON:g} s")
            time.sleep(0.01)


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
    """A role that a fault may befall, or that is in the midst of its work when it befalls others.

    Args:
        fault: what happens in this run.
        folder: where milestones are given.
    """

    def __init__(self, fault: Fault | None, folder: Path) -> None:
        super().__init__()
        self._role, self._fault = ROLES[self._rank], fault
        self._signs = Milestones(folder)
        self._steps = 0

    def _reach(self, phase: str) -> None:
        """The middle of a phase: where this worker is struck, or waits until others have been."""
        fault = self._fault
        if fault is None or not fault.is_due(phase, self._steps):
            return
        struck = fault.role == self._role
        if phase == "save" and struck or fault.role not in ROLES and self._role == "env":
            self._signs.give("halfway")
            self._signs.wait_for("go")
        if struck:
            self._signs.give("struck")
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
        self._steps += 1

    def _snapshot(self, folder: Path) -> Job:
        steps = self._steps
        return lambda: self._write(folder / f"{self._role}_{self._rank}", steps)

    def _write(self, path: Path, steps: int) -> None:
        path.write_text("half of it")
        self._reach("save")
        path.write_text(f"{steps}")

    def _restore(self, folder: Path) -> list[str]:
        raise NotImplementedError


class MortalKeeper(ChannelKeeper):
    """A keeper of channels that fails when it is given an item under the name of a fault."""

    def _on_put(self, who: str, connection: Any, fields: Any, body: Any) -> None:
        if fields[2] in ("exception", "memory"):
            strike(fields[2])
        super()._on_put(who, connection, fields, body)
