"""`rlinf eval CHECKPOINT`: the config is that of the run, and the folder is where it lies now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.config import build_config, to_plain, validate_cfg
from rlinf.utils.checkpoint import CheckpointStore


@pytest.fixture
def run(embodied: Path, tmp_path: Path) -> Path:
    """A run with the checkpoints of steps 1 and 2, which knew another folder."""
    began_with = ["actor.model.model_path=/gone", "runner.ckpt_path=/gone/too"]
    cfg = validate_cfg(build_config(str(embodied), began_with))
    store = CheckpointStore(tmp_path / "runs" / "mine" / "checkpoints")
    for step in (1, 2):
        store.begin(step)
        store.commit(step, {"versions": {}, "config": to_plain(cfg)})
    return tmp_path / "runs" / "mine"


def command_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Path, list[str]]:
    assert main(["eval", *arguments, "--dry-run"]) == 0
    words = capsys.readouterr().out.split()
    folder, name = (words[words.index(option) + 1] for option in ("--config-path", "--config-name"))
    return Path(folder) / f"{name}.yaml", words[words.index("--config-name") + 2 :]


@pytest.mark.parametrize(
    ("given", "step"), [(".", 2), ("checkpoints", 2), ("checkpoints/global_step_1", 1)]
)
def test_the_run_and_its_newest_checkpoint(
    run: Path, capsys: pytest.CaptureFixture[str], given: str, step: int
) -> None:
    path, overrides = command_of(capsys, str(run / given), "runner.eval_episodes=7")
    assert path.parent == run / f"eval_global_step_{step}"
    assert overrides == ["++runner.eval_episodes=7", "++runner.only_eval=true"]
    cfg = validate_cfg(build_config(str(path), ["runner.eval_episodes=7"]))
    assert cfg.runner.resume_dir == str(run / "checkpoints" / f"global_step_{step}")
    assert cfg.runner.run_dir == str(path.parent)
    # Weights that training began with may be gone, and are not needed.
    assert cfg.runner.ckpt_path is None
    assert cfg.actor.model.model_path is None and cfg.env.eval.id == "CartPole-v1"


def test_a_folder_that_says_what_the_policy_is_stays(
    embodied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vla").mkdir()
    cfg = validate_cfg(build_config(str(embodied), [f"actor.model.model_path={tmp_path / 'vla'}"]))
    store = CheckpointStore(tmp_path / "runs" / "mine" / "checkpoints")
    store.begin(3)
    store.commit(3, {"versions": {}, "config": to_plain(cfg)})
    path, _ = command_of(capsys, str(tmp_path / "runs" / "mine"))
    assert build_config(str(path)).actor.model.model_path == str(tmp_path / "vla")


def test_a_language_model_is_what_its_folder_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path(__file__).parents[3] / "examples/reasoning/config/smollm2_grpo.yaml"
    cfg = to_plain(validate_cfg(build_config(str(recipe))))
    store = CheckpointStore(tmp_path / "runs" / "mine" / "checkpoints")
    store.begin(3)
    store.commit(3, {"versions": {}, "config": cfg})
    path, _ = command_of(capsys, str(tmp_path / "runs" / "mine"))
    found = validate_cfg(build_config(str(path), ["runner.only_eval=true"]))
    assert found.actor.model == cfg["actor"]["model"]


def test_a_checkpoint_that_was_moved(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "best" / "global_step_2"
    shutil.copytree(run / "checkpoints" / "global_step_2", moved)
    path, _ = command_of(capsys, str(moved))
    assert path.parent == tmp_path / "best" / "eval_global_step_2"


def test_what_is_no_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = run / "checkpoints" / "global_step_7"
    assert main(["eval", str(missing)]) == 2
    assert "in" in (said := capsys.readouterr().err) and "global_step_1, global_step_2" in said
    (run / "checkpoints" / "global_step_2" / "manifest.json").unlink()
    assert main(["eval", str(run / "checkpoints" / "global_step_2")]) == 2
    assert "was not written to its end" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    assert main(["eval", str(run)]) == 2
    assert "no complete checkpoint" in capsys.readouterr().err
    assert main(["eval", str(run / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_training_does_not_take_a_checkpoint_for_a_config(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(run / "checkpoints" / "global_step_1"), "--dry-run"]) == 1
    assert "global_step_1" in capsys.readouterr().err
    assert json.loads((run / "checkpoints/global_step_1/manifest.json").read_text())["step"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("runs/nothing", "there is no run at runs/nothing; the newest runs in runs: runs/mine"),
        ("runs/mime", "there is no run at runs/mime; did you mean runs/mine?"),
        ("gone/nothing", "there is no run at gone/nothing; `rlinf runs FOLDER` lists the runs"),
    ],
)
def test_a_run_that_is_not_there_is_not_taken_for_a_config(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", given]) == 2
    told = capsys.readouterr().err
    assert said in told and "config" not in told
    # One above the experiment.
    assert main(["eval", str(tmp_path)]) == 2
    said = f"{tmp_path} is not the folder of a run; the newest runs in {tmp_path}: runs/mine"
    assert said in capsys.readouterr().err


def test_a_config_that_is_not_there_is_one(
    embodied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (embodied.with_name("absent"), embodied.with_name("absent.yaml")):
        assert main(["eval", str(given)]) == 1
        assert "there is no absent.yaml" in capsys.readouterr().err
