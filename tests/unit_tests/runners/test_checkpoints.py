"""A checkpoint has the parts of all workers, or there is none, whoever dies and comes back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rlinf.runners.checkpoints import RunCheckpoints
from rlinf.scheduler import FlexiblePlacementStrategy, WorkerDied, WorkerGroup, wait_restarted
from tests.unit_tests.runners.saving import Part


class Stage:
    """A group of two that saves, and what it is told to do."""

    def __init__(self, group: WorkerGroup, folder: Path):
        self.group = group
        self.survives = True
        self._place = folder / "told"
        self._place.mkdir()
        self.comes_back()
        cfg = OmegaConf.create({"runner": {"async_save": True, "keep_last": None, "keep_best": 0}})
        self.checkpoints = RunCheckpoints(
            cfg, folder / "checkpoints", [self.group], lambda death: self.survives
        )

    def comes_back(self) -> list[int]:
        restarted = wait_restarted(self.group)
        self.group.look_in(str(self._place)).wait()
        return restarted

    def tell(self, *what: str) -> None:
        for name in what:
            (self._place / name).touch()

    def forget(self, *what: str) -> None:
        for name in what:
            (self._place / name).unlink()

    def save(self, step: int) -> None:
        self.checkpoints.save(step, {"global_step": step}, None)

    @property
    def steps(self) -> list[int]:
        return [checkpoint.step for checkpoint in self.checkpoints.store.all()]

    @property
    def left_over(self) -> list[str]:
        return [path.name for path in self.checkpoints.store.folder.glob(".*")]


def test_an_evaluation_does_not_say_that_it_resumes(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"keep_last": None, "keep_best": 0}
    checkpoints = RunCheckpoints(OmegaConf.create({"runner": settings}), tmp_path, [])
    path = tmp_path / "logs" / "global_step_4"
    saved = SimpleNamespace(path=path, step=4, runner_state=dict)
    checkpoints.restore(saved, "evaluating")
    checkpoints.restore(saved)
    assert capsys.readouterr().out.splitlines() == [
        "evaluating step 4 from logs/global_step_4",
        "resuming after step 4 from logs/global_step_4",
    ]


@pytest.fixture(scope="module")
def group(shared_cluster) -> WorkerGroup:
    return Part.create_group().launch(shared_cluster, FlexiblePlacementStrategy([[0], [1]]))


@pytest.fixture
def stage(group, tmp_path) -> Iterator[Stage]:
    stage = Stage(group, tmp_path)
    yield stage
    stage.tell("write_0", "write_1")


def test_a_process_that_was_restarted_does_not_vouch_for_the_one_before_it(stage, capsys):
    stage.tell("write_0")
    stage.save(1)
    stage.checkpoints.poll()
    assert stage.steps == [], "rank 1 has not written its part"
    os.kill(stage.group.worker_info_list[1].pid, signal.SIGKILL)
    assert stage.comes_back() == [1]
    stage.checkpoints.poll()
    assert stage.checkpoints.failures == 1 and stage.steps == []
    said = capsys.readouterr().err
    assert "step 1 could not be saved" in said and "training goes on" in said
    assert "it has taken the place of one that died" in said

    stage.tell("write_1")
    stage.save(2)
    stage.checkpoints.poll(wait=True)
    assert stage.checkpoints.failures == 1 and stage.steps == [2]
    manifest = json.loads((stage.checkpoints.store.place(2) / "manifest.json").read_text())
    assert {"part_0", "part_1"} < set(manifest["files"])
    assert stage.left_over == []


@pytest.mark.parametrize("survives", [True, False])
def test_a_death_while_saving_costs_the_checkpoint_if_the_worker_comes_back(
    stage, capsys, survives
):
    stage.survives = survives
    stage.tell("write_0", "write_1", "die_1")
    if not survives:
        with pytest.raises(WorkerDied, match=":1 "):
            stage.save(1)
        assert stage.steps == []
        return
    stage.save(1)
    assert stage.checkpoints.failures == 1 and stage.steps == []
    assert "step 1 could not be saved (WorkerDied: " in capsys.readouterr().err
    stage.forget("die_1")
    stage.comes_back()
    stage.save(2)
    stage.checkpoints.poll(wait=True)
    assert stage.checkpoints.failures == 1 and stage.steps == [2]


@pytest.mark.parametrize("survives", [True, False])
def test_a_death_while_others_write_is_noticed_by_whoever_waits(stage, survives):
    stage.survives = survives
    stage.tell("write_1")
    stage.save(1)
    waited = stage.group.execute_on(1).checkpoint_written(stage.checkpoints._pending.folder, True)
    assert waited.wait(timeout=60) == [True]
    asked = stage.group.checkpoint_written(stage.checkpoints._pending.folder, True)
    os.kill(stage.group.worker_info_list[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=":0 "):
        asked.wait(timeout=60)
    if survives:
        stage.checkpoints.poll(wait=True)
        assert stage.checkpoints.failures == 1 and stage.steps == []
    stage.comes_back()
    stage.checkpoints.settle()
    assert stage.steps == []


def test_errors_of_several_ranks_cost_one_checkpoint(stage, capsys):
    """Rank 1 fails when the checkpoint is given up already, which the next one must not notice."""
    stage.tell("write_0", "fail_0", "fail_1")
    stage.save(1)
    while not stage.checkpoints.failures:
        stage.checkpoints.poll()
    assert "OSError: no room for rank 0" in capsys.readouterr().err
    stage.tell("write_1")
    folder = str(stage.checkpoints.store._part(1))
    with pytest.raises(OSError, match="no room for rank 1"):
        stage.group.execute_on(1).checkpoint_written(folder, True).wait(timeout=60)
    stage.forget("fail_0", "fail_1")
    stage.save(2)
    stage.checkpoints.poll(wait=True)
    assert stage.checkpoints.failures == 1 and stage.steps == [2]


def test_what_is_written_after_the_end_of_a_checkpoint_is_swept_away(stage):
    stage.tell("write_0", "fail_0")
    stage.save(1)
    while not stage.checkpoints.failures:
        stage.checkpoints.poll()
    stage.tell("write_1")
    folder = str(stage.checkpoints.store._part(1))
    assert stage.group.execute_on(1).checkpoint_written(folder, True).wait(timeout=60) == [True]
    assert stage.left_over == [Path(folder).name]
    stage.forget("fail_0")
    stage.save(2)
    stage.checkpoints.poll(wait=True)
    assert stage.left_over == [] and stage.steps == [2]


def test_what_cannot_be_saved_is_told_once_and_costs_no_checkpoint(stage, capsys):
    stage.tell("write_0", "write_1", "lack")
    for step in (1, 2):
        stage.save(step)
        stage.checkpoints.poll(wait=True)
    assert stage.checkpoints.failures == 0 and stage.steps == [1, 2]
    said = capsys.readouterr().err
    assert said.count("checkpoints hold all but the memory of it") == 1
    assert "not exactly the uninterrupted one" in said
    assert stage.checkpoints.not_saved == ["the memory of it"]
    for step in (1, 2):
        manifest = json.loads((stage.checkpoints.store.place(step) / "manifest.json").read_text())
        assert manifest["not_saved"] == ["the memory of it"]
