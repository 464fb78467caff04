"""Whoever is struck, however, whenever: the run recovers or ends, and says who it was."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf.config import validate_cfg
from rlinf.scheduler import Cluster, FlexiblePlacementStrategy
from rlinf.scheduler.cluster.shutdown import runs
from rlinf.utils.checkpoint import Checkpoint, CheckpointStore
from tests.e2e_tests.faults.job import STEPS, Loop
from tests.e2e_tests.faults.parts import ITEMS, ROLES, Fault, MortalKeeper, Part

DOING = {
    "start": "init_worker",
    "rollout": "play",
    "training": "train",
    "save": "save_checkpoint",
}
PATIENCE = 4.0
"""Seconds after which a call that does not come back ends the run."""


def config(folder: Path) -> Any:
    return validate_cfg(
        {
            "cluster": {
                "num_nodes": 1,
                "timeouts": {"call": PATIENCE, "recv": PATIENCE, "channel": PATIENCE},
            },
            "runner": {
                "task_type": "workers",
                "save_interval": 1,
                "progress": "off",
                "logger": {
                    "log_path": str(folder),
                    "experiment_name": "run",
                    "logger_backends": ["jsonl"],
                },
            },
        }
    )


class Ran:
    """What a run has left behind."""

    def __init__(self, folder: Path, fault: Fault | None):
        self.folder = folder / "run"
        self.error: BaseException | None = None
        self.processes: list[psutil.Process] = []
        cfg = config(folder)
        self.begin = time.monotonic()
        try:
            with Cluster(
                cluster_cfg=cfg.cluster, distributed_log_dir=str(folder / "logs")
            ) as cluster:
                self._run(cfg, cluster, fault)
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - self.begin
        card = folder / "logs" / "failure.json"
        self.card = json.loads(card.read_text()) if card.exists() else None

    def _run(self, cfg: Any, cluster: Cluster, fault: Fault | None) -> None:
        slots = FlexiblePlacementStrategy([[rank] for rank in range(len(ROLES))])
        team = Part.create_group(fault).launch(cluster, slots, name="team")
        self.processes = [psutil.Process(info.pid) for info in team.worker_info_list]
        self.begin = time.monotonic()
        self.loop = Loop(cfg, team, fault)
        self.loop.init_workers()
        self.loop.run()

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def assert_nobody_is_left(self) -> None:
        deadline = time.monotonic() + 10
        while (alive := [p for p in self.processes if runs(p)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive

    def assert_the_last_checkpoint_is_whole(self, *steps: int) -> None:
        """It is of one of these steps; of the one before, if its last moment was too early."""
        checkpoints = CheckpointStore(self.folder / "checkpoints").all()
        step = checkpoints[-1].step
        assert step in steps
        Checkpoint.open(checkpoints[-1].path)
        for role in ROLES:
            (file,) = checkpoints[-1].path.glob(f"{role}_*")
            assert file.read_text() == str(step)


def test_without_a_fault(ray_session, tmp_path):
    ran = Ran(tmp_path, None)
    assert ran.error is None and ran.card is None
    assert ran.loop.totals_seen == [sum(range(ITEMS))] * STEPS
    ran.assert_the_last_checkpoint_is_whole(STEPS)
    ran.assert_nobody_is_left()


KINDS = ("exception", "kill", "stop", "memory")
ALL = bool(os.environ.get("RLINF_ALL_TESTS"))


def cases() -> list[Fault]:
    """Every pair of kind and phase, roles in turn; with RLINF_ALL_TESTS=1 every triple."""
    triples = []
    for (i, kind), (j, phase) in itertools.product(enumerate(KINDS), enumerate(DOING)):
        roles = ROLES if ALL else [ROLES[(i + j) % len(ROLES)]]
        triples += [Fault(role, kind, phase) for role in roles]
    return triples


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", cases(), ids="-".join)
def test_a_worker_is_struck(ray_session, tmp_path, fault):
    ran = Ran(tmp_path, fault)
    assert ran.seconds < 30
    ran.assert_nobody_is_left()
    if fault.phase == "save" and fault.kind in ("exception", "memory"):
        # What cannot be written costs that checkpoint, and nothing else.
        assert ran.error is None and ran.summary["status"] == "finished"
        assert ran.loop.checkpoints.failures == 1
        ran.assert_the_last_checkpoint_is_whole(STEPS)
        assert not (ran.folder / "checkpoints" / "global_step_2").exists()
        return
    assert ran.error is not None and ran.card is not None
    assert ran.card["who"] == f"team:{ROLES.index(fault.role)}", ran.card
    evidence = " ".join(str(ran.card[key]) for key in ("what", "cause", "evidence"))
    said = {"exception": "struck by a test", "kill": "SIGKILL", "stop": "stopped"}
    assert said.get(fault.kind, "MemoryError") in evidence, ran.card
    if fault.phase != "save":
        # A file is written in the background, whatever else the worker is doing.
        assert DOING[fault.phase] in ran.card["doing"], ran.card
    if fault.phase == "start":
        assert not (ran.folder / "checkpoints").exists()
    else:
        assert ran.summary["status"] == "failed"
        ran.assert_the_last_checkpoint_is_whole(1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "kind, phase",
    itertools.product(KINDS, DOING)
    if ALL
    else [("kill", "start"), ("stop", "rollout"), ("memory", "training"), ("exception", "save")],
)
def test_a_keeper_of_channels_is_struck(ray_session, tmp_path, monkeypatch, kind, phase):
    monkeypatch.setattr("rlinf.scheduler.channel.keeper.ChannelKeeper", MortalKeeper)
    ran = Ran(tmp_path, Fault("keeper", kind, phase))
    assert ran.seconds < 30
    ran.assert_nobody_is_left()
    assert ran.error is not None and ran.card is not None
    assert "ChannelKeeper" in json.dumps(ran.card), ran.card
    if kind in ("exception", "memory"):
        assert ran.card["who"].startswith("ChannelKeeper") and ran.card["doing"] == "running put()"
    if phase != "start":
        # A death is noticed by whoever needs the channels: after a rollout, the step may be saved.
        late = kind in ("kill", "stop") and phase != "rollout"
        ran.assert_the_last_checkpoint_is_whole(*((1, 2) if late else (1,)))


# -- the driver -------------------------------------------------------------------------------


def drive(folder: str, fault: Fault | None, answer: Any) -> None:
    """The whole program, in a process of its own."""
    os.setsid()
    ran = Ran(Path(folder), fault)
    answer.put(repr(ran.error))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "kind, phase",
    itertools.product(("exception", "memory"), DOING)
    if ALL
    else [("exception", "start"), ("memory", "rollout"), ("exception", "save")],
)
def test_the_driver_is_struck(ray_session, tmp_path, kind, phase):
    ran = Ran(tmp_path, Fault("driver", kind, phase))
    assert type(ran.error) is {"exception": RuntimeError, "memory": MemoryError}[kind]
    ran.assert_nobody_is_left()
    assert ran.card["who"] == "driver", ran.card
    if phase != "start":
        ran.assert_the_last_checkpoint_is_whole(1)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "kind, phase",
    itertools.product(("kill", "stop"), DOING) if ALL else [("kill", "save"), ("stop", "rollout")],
)
def test_the_drivers_process_is_struck(tmp_path, kind, phase):
    """A killed driver takes everybody along; one that was stopped goes on when it may."""
    context = get_context("spawn")
    answer = context.Queue()
    driver = context.Process(
        target=drive, args=(str(tmp_path), Fault("driver", kind, phase), answer)
    )
    driver.start()
    process = psutil.Process(driver.pid)
    family: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + 60
    while driver.is_alive() and process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        try:
            family |= {child.pid: child for child in process.children(recursive=True)}
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    if kind == "stop":
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
        assert answer.get(timeout=60) == "None"
    driver.join(30)
    assert driver.exitcode == (-signal.SIGKILL if kind == "kill" else 0)
    deadline = time.monotonic() + 20
    while (alive := [p for p in family.values() if runs(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive, f"left behind: {alive}"
    newest = CheckpointStore(tmp_path / "run" / "checkpoints").latest()
    if (kind, phase) == ("kill", "start"):
        assert newest is None
    else:
        assert newest.step == (1 if kind == "kill" else STEPS)
