"""A run has a folder of its own; one that is refused leaves everything as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlinf.config import ConfigError, to_plain, validate_cfg
from rlinf.runners.run_folder import (
    RunRefused,
    begin_run,
    checkpoint_folder,
    end_run,
    run_folder,
)
from rlinf.utils.checkpoint import CheckpointError, CheckpointStore
from rlinf.utils.runs import RunInUse, RunLock
from tests.unit_tests.workers.actor.learning import make_cfg

EVAL = {"env_type": "metaworld", "total_num_envs": 4}


def cfg_of(tmp_path, **runner):
    logger = {"log_path": str(tmp_path), "experiment_name": "mine"}
    keys = {f"runner.{key}": value for key, value in runner.items()}
    return make_cfg({"runner.logger": logger, "env.eval": EVAL, **keys})


@pytest.fixture
def begin(tmp_path):
    """Begins runs, and ends them with the test."""
    begun = []

    def begin(**runner):
        cfg = begin_run(cfg_of(tmp_path, **runner))
        begun.append(run_folder(cfg))
        (run_folder(cfg) / "config.yaml").write_text("")
        return cfg

    yield begin
    for folder in begun:
        end_run(folder)


def save(run: Path, step: int, cfg) -> Path:
    store = CheckpointStore(run / "checkpoints")
    store.begin(step)
    config = cfg if isinstance(cfg, dict) else to_plain(cfg)
    return store.commit(step, {"config": config}).path


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_every_run_has_a_folder_of_its_own(tmp_path, begin):
    first, second = run_folder(begin()), run_folder(begin())
    assert first != second and first.parent == second.parent == tmp_path / "mine"
    assert (tmp_path / "mine" / "latest").resolve() == second


def test_a_run_is_begun_once(begin):
    cfg = begin()
    assert begin_run(cfg) is cfg


def test_a_folder_that_was_named_is_taken_exactly_and_never_overwritten(tmp_path, begin):
    place = str(tmp_path / "here")
    cfg = begin(run_dir=place)
    assert cfg.runner.run_dir == place
    end_run(run_folder(cfg))
    with pytest.raises(RunRefused, match=f"run_dir={place} has a run.*resume_dir=auto"):
        begin_run(cfg_of(tmp_path, run_dir=place))


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    place = tmp_path / "here"
    place.mkdir()
    lock = RunLock(place)
    with pytest.raises(RunInUse, match="is in use"):
        begin_run(cfg_of(tmp_path, run_dir=str(place)))
    lock.release()


def test_auto_goes_on_with_the_newest_run_that_has_a_checkpoint(tmp_path, begin, capsys):
    assert begin(resume_dir="auto").runner.resume_dir is None
    assert "begins at step 0" in capsys.readouterr().out
    older, newer = begin(), begin()
    begin()
    for cfg in (older, newer):
        save(run_folder(cfg), 2, cfg)
        place = save(run_folder(cfg), 10, cfg)
        end_run(run_folder(cfg))
    cfg = begin(resume_dir="auto")
    assert run_folder(cfg) == run_folder(newer) and cfg.runner.resume_dir == str(place)


def test_auto_waits_for_nobody_who_still_runs(tmp_path, begin):
    cfg = begin()
    save(run_folder(cfg), 2, cfg)
    with pytest.raises(RunInUse):
        RunLock(run_folder(cfg))


def test_a_checkpoint_that_was_named_begins_a_run_of_its_own(tmp_path, begin):
    cfg = begin()
    place = save(run_folder(cfg), 2, cfg)
    other = begin(resume_dir=str(place))
    assert run_folder(other) != run_folder(cfg) and other.runner.resume_dir == str(place)


def test_the_code_is_recorded_each_time_that_a_run_begins(begin):
    cfg = begin()
    record = run_folder(cfg) / "code"
    assert (record / "1" / "packages.txt").is_file() and not (record / "2").exists()
    save(run_folder(cfg), 2, cfg)
    end_run(run_folder(cfg))
    first = (record / "1" / "code.json").read_bytes()
    begin(resume_dir="auto")
    assert (record / "2" / "code.json").is_file()
    assert (record / "1" / "code.json").read_bytes() == first


def test_a_refused_resume_leaves_everything_as_it_was(tmp_path, begin):
    cfg = begin()
    save(run_folder(cfg), 2, cfg)
    end_run(run_folder(cfg))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"another configuration(.|\n)*algorithm.gamma"):
        begin_run(
            make_cfg(
                {
                    "runner.logger": {"log_path": str(tmp_path), "experiment_name": "mine"},
                    "runner.resume_dir": "auto",
                    "algorithm.gamma": 0.5,
                }
            )
        )
    assert contents(tmp_path) == before


def test_a_key_that_is_newer_than_the_checkpoint_has_its_default(tmp_path, begin):
    older = to_plain(cfg_of(tmp_path))
    del older["algorithm"]["clip_ratio_low"]
    path = save(tmp_path / "elsewhere", 3, older)
    begin(resume_dir=str(path))
    other = cfg_of(tmp_path, resume_dir=str(path))
    OmegaConf.set_readonly(other, False)
    other.algorithm.clip_ratio_low = 0.123
    with pytest.raises(CheckpointError, match=r"algorithm.clip_ratio_low: .* then, 0.123 now"):
        begin_run(other)


def test_a_check_of_training_that_is_newer_than_the_checkpoint_hides_no_keys(tmp_path, begin):
    older = to_plain(cfg_of(tmp_path))
    del older["algorithm"]["clip_ratio_low"]
    older["env"]["eval"]["hide_goal"] = True
    with pytest.raises(ConfigError, match=r"env.eval.hide_goal"):
        validate_cfg(older)
    path = save(tmp_path / "elsewhere", 3, older)
    begin(resume_dir=str(path))
    begin(resume_dir=str(path), only_eval=True)


def test_evaluations_write_beside_the_training(tmp_path, begin):
    cfg = begin()
    place = save(run_folder(cfg), 2, cfg)
    for name in ("eval_global_step_2", "eval_global_step_2-2"):
        found = run_folder(begin(only_eval=True, resume_dir=str(place)))
        assert found == run_folder(cfg) / name
    assert run_folder(begin(only_eval=True)).parent == tmp_path / "mine"
    assert (tmp_path / "mine" / "latest").resolve() == run_folder(cfg)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "mine").write_text("a file in the way")
    with pytest.raises(RunRefused, match=r"mine.*set runner.logger.log_path"):
        begin_run(cfg_of(tmp_path))


def test_checkpoints_elsewhere_are_linked_to(tmp_path):
    cfg = make_cfg(
        {
            "runner.logger": {"log_path": str(tmp_path), "experiment_name": "mine"},
            "actor.checkpoint_save_path": str(tmp_path / "big"),
        }
    )
    cfg = begin_run(cfg)
    folder = checkpoint_folder(cfg)
    assert folder == run_folder(cfg) / "checkpoints"
    assert folder.resolve() == tmp_path / "big" / "mine" / run_folder(cfg).name / "checkpoints"
    assert checkpoint_folder(cfg) == folder
    end_run(run_folder(cfg))
