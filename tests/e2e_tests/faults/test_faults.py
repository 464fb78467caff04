"""Whoever is struck, however, whenever: the run recovers or ends, and says who it was."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf.scheduler.cluster.shutdown import runs
from rlinf.scheduler.failure.process_state import is_stopped
from rlinf.utils.checkpoint import Checkpoint, CheckpointStore
from tests.e2e_tests.faults.job import STEPS
from tests.e2e_tests.faults.parts import ITEMS, ROLES, SOON, Fault, Milestones
from tests.fork_server import ForkServer
from tests.long_tests import ALL_TESTS

pytestmark = pytest.mark.timeout(400)

KINDS = ("exception", "kill", "stop", "memory")
PHASES = ("start", "rollout", "training", "save")
PROMISE = 30.0
"""Seconds after which a run that was struck has ended, and all its processes with it."""
SAID = {
    "exception": "struck by a test",
    "kill": "SIGKILL",
    "stop": "stopped by a signal",
    "memory": "MemoryError",
}
AT_ONCE = 3
"""Runs beside each other: most of the time they wait."""


class Ran:
    """A run, and what it has left behind."""

    def __init__(
        self, fork_server: ForkServer, joining: dict[str, str], folder: Path, fault: Fault | None
    ) -> None:
        self.folder = folder
        argv = ["tests.e2e_tests.faults.program", str(folder), *(fault or ())]
        with open(folder / "output", "wb") as output:
            env = {**os.environ, **joining}
            # It finds its modules already, and its workers should not begin with another one.
            env.pop("PYTHONPATH", None)
            driver = psutil.Process(fork_server.start(argv, env, output.fileno()))
        self._wait_for(lambda: is_stopped(driver.pid) or not runs(driver))
        self.was_stopped = is_stopped(driver.pid)
        if self.was_stopped:
            time.sleep(1.0)
            driver.send_signal(signal.SIGCONT)
            self._wait_for(lambda: not runs(driver))
        known = self._read("processes.json")
        assert known is not None, self.output
        processes = [process for process in map(_process, known) if process is not None]
        self._wait_for(lambda: not any(map(runs, processes)))
        struck = Milestones(folder).time_of("struck")
        self.seconds = time.monotonic() - struck if struck else None
        self.outcome = self._read("outcome.json")
        self.card = self._read("logs/failure.json")
        self.summary = self._read("run/summary.json") or {}
        self.checkpoints = folder / "run" / "checkpoints"

    def _wait_for(self, event: Any) -> None:
        deadline = time.monotonic() + 2 * SOON
        while not event():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    @property
    def output(self) -> str:
        """What the driver has printed, and its workers."""
        return (self.folder / "output").read_text(errors="replace")

    def _read(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def assert_the_last_checkpoint_is_whole(self, step: int) -> None:
        """It is of this step; 0 if there must not be one."""
        found = CheckpointStore(self.checkpoints).all()
        assert [checkpoint.step for checkpoint in found][-1:] == ([step] if step else [])
        if step:
            Checkpoint.open(found[-1].path)
            for role in ROLES:
                (file,) = found[-1].path.glob(f"{role}_*")
                assert file.read_text() == str(step)

    def assert_it_failed(self, fault: Fault, who: str, doing: tuple[str, ...]) -> None:
        """Within the promised time, with a card that says who, what, and what it was doing."""
        assert self.seconds < PROMISE
        assert self.outcome["error"] is not None and self.card is not None
        assert self.card["who"] == who, self.card
        said = " ".join([self.card["what"], self.card["cause"], *self.card["evidence"]])
        assert SAID[fault.kind] in said, self.card
        assert any(text in self.card["doing"] for text in doing), self.card
        if fault.phase == "start":
            return
        assert self.summary["status"] == "failed"


def _process(known: list[float]) -> psutil.Process | None:
    """A process by its id and the time when it began; None if it has ended."""
    pid, began = known
    try:
        process = psutil.Process(int(pid))
        return process if process.create_time() == began else None
    except psutil.NoSuchProcess:
        return None


class Runs:
    """Runs with all faults that are asked for, some at once, in the order of the tests."""

    def __init__(self, pool: ThreadPoolExecutor, *shared: Any) -> None:
        self._pool = pool
        self._shared = shared
        self._begun: dict[Fault | None, Future[Ran]] = {}

    def begin(self, folder: Path, fault: Fault | None) -> None:
        """Runs with a fault as soon as it is its turn."""
        self._begun[fault] = self._pool.submit(Ran, *self._shared, folder, fault)

    def __getitem__(self, fault: Fault | None) -> Ran:
        ran = self._begun[fault].result()
        # Shown if the test fails.
        print(ran.output)
        return ran


@pytest.fixture(scope="module")
def runs_with(
    request: pytest.FixtureRequest,
    fork_server: ForkServer,
    joining_ray: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runs]:
    wanted = [i.callspec.params["fault"] for i in request.session.items if i.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        performed = Runs(pool, fork_server, joining_ray)
        for fault in wanted:
            performed.begin(tmp_path_factory.mktemp("run"), fault)
        yield performed
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("fault", [None])
def test_without_a_fault(runs_with, fault):
    ran = runs_with[fault]
    assert ran.outcome == {"error": None, "totals": [sum(range(ITEMS))] * STEPS, "failures": 0}
    assert ran.card is None
    ran.assert_the_last_checkpoint_is_whole(STEPS)


def of(*roles: str, kinds: tuple[str, ...] = KINDS, in_turn: bool = False) -> Any:
    """Every phase for these roles and kinds.

    Args:
        roles: who is struck.
        kinds: how.
        in_turn: whether one role is enough for each kind and phase, unless all tests are wanted;
            every role is struck in every way and in every phase.
    """
    faults = [Fault(*triple) for triple in itertools.product(roles, kinds, PHASES)]
    if in_turn and not ALL_TESTS:
        faults = [
            Fault(roles[(i + j) % len(roles)], kind, phase)
            for i, kind in enumerate(kinds)
            for j, phase in enumerate(PHASES)
        ]
    return pytest.mark.parametrize("fault", faults, ids="-".join)


@of(*ROLES, in_turn=True)
def test_a_worker_is_struck(runs_with, fault):
    ran = runs_with[fault]
    if fault.phase == "save" and fault.kind in ("exception", "memory"):
        # What cannot be written costs that checkpoint, and nothing else.
        assert ran.outcome["error"] is None and ran.outcome["failures"] == 1
        assert ran.summary["status"] == "finished" and ran.card is None
        ran.assert_the_last_checkpoint_is_whole(STEPS)
        assert not (ran.checkpoints / "global_step_2").exists()
        return
    doing = {
        "start": ("running init_worker()",),
        "rollout": ("running play()",),
        "training": ("running train()",),
        # A file is written in the background, whatever else the worker is doing.
        "save": ("running checkpoint_written()", "idle"),
    }[fault.phase]
    ran.assert_it_failed(fault, f"team:{ROLES.index(fault.role)}", doing)
    ran.assert_the_last_checkpoint_is_whole(0 if fault.phase == "start" else 1)


@of("keeper")
def test_a_keeper_of_channels_is_struck(runs_with, fault):
    ran = runs_with[fault]
    raises = fault.kind in ("exception", "memory")
    doing = ("running put()",) if raises else ("idle",)
    ran.assert_it_failed(fault, "ChannelKeeper-node0:0", doing)
    # A death is noticed by whoever needs the channels next: that is the rollout of the next step.
    late = not raises and fault.phase in ("training", "save")
    ran.assert_the_last_checkpoint_is_whole(0 if fault.phase == "start" else 1 + late)


@of("driver", kinds=("exception", "memory"))
def test_the_driver_is_struck(runs_with, fault):
    ran = runs_with[fault]
    ran.assert_it_failed(fault, "driver", ("running the program",))
    assert f"in _in_{fault.phase}" in Path(ran.card["traceback"]).read_text(), ran.card
    errors = {"exception": "RuntimeError", "memory": "MemoryError"}
    assert ran.outcome["error"] == errors[fault.kind]
    ran.assert_the_last_checkpoint_is_whole(0 if fault.phase == "start" else 1)


@of("driver", kinds=("kill",))
def test_the_driver_is_killed(runs_with, fault):
    """It takes everybody along."""
    ran = runs_with[fault]
    assert ran.seconds < PROMISE
    assert ran.outcome is None
    ran.assert_the_last_checkpoint_is_whole(0 if fault.phase == "start" else 1)


@of("driver", kinds=("stop",))
def test_the_driver_is_stopped(runs_with, fault):
    """It goes on when it may."""
    ran = runs_with[fault]
    assert ran.was_stopped
    assert ran.outcome["error"] is None and ran.card is None
    assert ran.outcome["totals"] == [sum(range(ITEMS))] * STEPS
    assert ran.summary["status"] == "finished"
    ran.assert_the_last_checkpoint_is_whole(STEPS)
