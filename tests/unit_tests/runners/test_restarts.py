"""A job that fails is run again from its newest whole checkpoint, as often as the config allows."""

from __future__ import annotations

import json
import os

import pytest
from omegaconf import OmegaConf

from rlinf.config import ConfigError
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.utils.checkpoint import CheckpointError, CheckpointStore


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def config(folder, restarts: int, resume_dir: str | None = None):
    logger = {"log_path": str(folder.parent), "experiment_name": folder.name}
    runner = {"max_restarts": restarts, "resume_dir": resume_dir, "logger": logger}
    runner["only_eval"] = False
    cfg = OmegaConf.create({"runner": runner})
    OmegaConf.set_readonly(cfg, True)
    return cfg


def save(folder, step: int):
    store = CheckpointStore(folder / "checkpoints")
    (store.begin(step) / "weights").write_bytes(b"0" * 100)
    return store.commit(step, {}).path


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


def test_the_budget_ends(folder):
    job = Job(folder, [1, RuntimeError("one")], [RuntimeError("two")])
    with pytest.raises(RuntimeError, match="two"):
        run_with_restarts(config(folder, 1), job)
    assert len(job.resumed) == 2


def test_a_checkpoint_of_an_earlier_run_is_not_taken(folder):
    old = save(folder, 7)
    os.utime(old / "manifest.json", (1, 1))
    job = Job(folder, [RuntimeError("before the first checkpoint")], [1])
    run_with_restarts(config(folder, 1), job)
    assert job.resumed == [None, None]


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
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_what_a_restart_cannot_change_ends_the_run(folder, error, told):
    job = Job(folder, [error], [1])
    with pytest.raises(told) as caught:
        run_with_restarts(config(folder, 3), job)
    assert len(job.resumed) == 1
    if told is SystemExit:
        assert caught.value.code == "error: there is no checkpoint x"
