"""A job that fails is run again from its newest whole checkpoint, as often as the config allows."""

from __future__ import annotations

import json
import os
import signal

import pytest
from omegaconf import OmegaConf

from rlinf.config import ConfigError
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.stop import RunStopped
from rlinf.utils.checkpoint import CheckpointError, CheckpointStore
from rlinf.utils.phases import phases
from rlinf.utils.runs import RunSummary, status_of
from rlinf.utils.runs.summary import PROMISED, close_summary


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def config(folder, restarts: int, resume_dir: str | None = None):
    logger = {"log_path": str(folder.parent), "experiment_name": folder.name}
    runner = {"max_restarts": restarts, "resume_dir": resume_dir, "logger": logger}
    runner |= {"run_dir": str(folder), "only_eval": False, "resume_force": True}
    runner |= {"seed": 7, "progress": "off", "ckpt_path": None}
    cfg = OmegaConf.create({"runner": runner, "cluster": {"num_nodes": 1}})
    OmegaConf.set_readonly(cfg, True)
    return cfg


def save(folder, step: int):
    store = CheckpointStore(folder / "checkpoints")
    (store.begin(step) / "weights").write_bytes(b"0" * 100)
    return store.commit(step, {"config": {}}).path


class Job:
    """Saves and fails by plan; remembers what each attempt was told to resume from."""

    def __init__(self, folder, *plan):
        self.folder, self.plan, self.resumed = folder, list(plan), []

    def __call__(self, cfg):
        self.resumed.append(cfg.runner.resume_dir)
        (self.folder / WORKERS).mkdir()
        for step in self.plan.pop(0):
            if isinstance(step, BaseException):
                raise step
            save(self.folder, step)
        (self.folder / "summary.json").write_text('{"status": "finished"}')
        return "done"


def test_each_attempt_begins_at_the_newest_checkpoint(folder, capsys):
    job = Job(folder, [1, 2, RuntimeError("first")], [3, OSError("second")], [4])
    cfg = config(folder, 2)
    assert run_with_restarts(cfg, job) == "done"
    place = folder / "checkpoints"
    assert job.resumed == [None, str(place / "global_step_2"), str(place / "global_step_3")]
    assert cfg.runner.resume_dir is None, "the user's configuration is left alone"
    assert json.loads((folder / "summary.json").read_text())["restarts"] == 2
    assert sorted(p.name for p in folder.glob("workers*")) == [
        "workers",
        "workers.failed_1",
        "workers.failed_2",
    ]
    said = capsys.readouterr().err
    assert "RuntimeError: first" in said and "restart 2 of at most 2" in said


def test_a_run_without_its_first_weights_is_not_begun(folder):
    cfg, job = config(folder, 1), Job(folder)
    OmegaConf.set_readonly(cfg, False)
    cfg.runner.ckpt_path = str(folder / "none")
    with pytest.raises(SystemExit, match=f"error: runner.ckpt_path: .* at {folder}/none; it takes"):
        run_with_restarts(cfg, job)
    assert job.resumed == [] and not folder.exists()


def test_the_budget_ends(folder):
    job = Job(folder, [1, RuntimeError("one")], [RuntimeError("two")])
    with pytest.raises(RuntimeError, match="two"):
        run_with_restarts(config(folder, 1), job)
    assert len(job.resumed) == 2


def test_a_checkpoint_of_an_earlier_run_is_not_taken(folder):
    old = save(folder, 7)
    os.utime(old / "manifest.json", (1, 1))
    earlier = save(folder, 8)
    job = Job(folder, [RuntimeError("before the first checkpoint")], [9])
    os.utime(earlier / "manifest.json", (1, 1))
    run_with_restarts(config(folder, 1, str(old)), job)
    assert job.resumed == [str(old), str(old)]


def test_a_damaged_checkpoint_is_passed_over(folder, capsys):
    def damage(cfg):
        if cfg.runner.resume_dir is None:
            save(folder, 1)
            (save(folder, 2) / "weights").write_bytes(b"1" * 100)
            raise RuntimeError("in the middle")
        (folder / "summary.json").write_text("{}")
        return cfg.runner.resume_dir

    assert run_with_restarts(config(folder, 1), damage).endswith("global_step_1")
    assert "weights is not what was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, told",
    [
        (CheckpointError("there is no checkpoint x"), SystemExit),
        (ConfigError([]), ConfigError),
    ],
)
def test_what_a_restart_cannot_change_ends_the_run(folder, error, told):
    job = Job(folder, [error], [1])
    with pytest.raises(told) as caught:
        run_with_restarts(config(folder, 3), job)
    assert len(job.resumed) == 1
    if told is SystemExit:
        assert caught.value.code == "error: there is no checkpoint x"


def test_a_run_that_is_refused_starts_nothing(folder, capsys):
    save(folder, 1)
    job = Job(folder)
    with pytest.raises(SystemExit, match="error: runner.run_dir=.* has a run already"):
        run_with_restarts(config(folder, 0), job)
    assert job.resumed == []


@pytest.mark.parametrize(
    "error, code, status",
    [
        (RunStopped(signal.SIGINT), 130, "stopped"),
        (RunStopped(signal.SIGTERM), 143, "stopped"),
        (RunStopped(signal.SIGHUP), 129, "stopped"),
        (KeyboardInterrupt(), 130, "stopped"),
        (SystemExit(143), 143, "stopped"),
    ],
)
def test_a_run_that_was_stopped_leaves_with_the_code_of_the_signal(folder, error, code, status):
    def job(cfg):
        RunSummary(folder)
        if isinstance(error, RunStopped):
            close_summary(folder, "stopped")
        raise error

    with pytest.raises(SystemExit) as caught:
        run_with_restarts(config(folder, 2), job)
    assert caught.value.code == code and status_of(folder) == status


def test_a_run_that_fails_before_its_first_step_is_not_running(folder):
    def job(cfg):
        RunSummary(folder)
        raise ValueError("no such env")

    with pytest.raises(ValueError):
        run_with_restarts(config(folder, 0), job)
    facts = json.loads((folder / "summary.json").read_text())
    assert facts["status"] == "failed" and facts["error"] == "ValueError: no such env"


def test_a_run_that_fails_before_it_has_workers_is_remembered(folder):
    def job(cfg):
        assert status_of(folder) == "running"
        with phases.phase("start_ray"):
            raise OSError("no port is free")

    with pytest.raises(OSError):
        run_with_restarts(config(folder, 0), job)
    facts = json.loads((folder / "summary.json").read_text())
    assert facts["status"] == "failed" and facts["recipe"] == "run" and facts["seed"] == 7
    assert set(PROMISED) <= facts.keys() and facts["checkpoint"] is None
    assert facts["phases"].keys() == {"imports", "start_ray"}
    assert facts["wall_seconds"] >= facts["phases"]["imports"] > 0


def test_a_run_that_has_said_itself_that_it_was_stopped_is_not_told_otherwise(folder, capsys):
    def job(cfg):
        RunSummary(folder).write(status="stopped")
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        run_with_restarts(config(folder, 0), job)
    assert "before the first step" not in capsys.readouterr().out
