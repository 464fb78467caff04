"""What may follow on a command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import build_parser
from rlinf.cli.completion.candidates import candidates


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recipe, two experiments and a folder that is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my_robot.yaml").write_text("# Walks.\nrunner: {seed: 1}\n")
    (tmp_path / "loose.yaml").write_text("runner: {seed: 1}\n")
    for run in ("old/20260101-000000-aaaa", "old/20260102-000000-bbbb", "robot/20260103-000000-c"):
        (tmp_path / "logs" / run / "checkpoints" / "global_step_30").mkdir(parents=True)
    (tmp_path / "logs" / "notes").mkdir()
    return tmp_path


def found(line: str) -> list[str]:
    """Returns candidates for the last word of a line, which may be empty."""
    return [item.text for item in candidates(build_parser(), line.split(" "))]


def about(line: str) -> dict[str, str]:
    return dict(candidates(build_parser(), line.split(" ")))


def test_commands() -> None:
    assert {"train", "eval", "check", "new", "completion"} <= set(found(""))
    assert set(found("trai")) == {"train"}
    assert about("check-")["check-env"] == "exercise an environment and say what is wrong with it"
    assert "__complete" not in found("")
    assert found("no_such_command ") == []


def test_options_and_their_values() -> None:
    assert found("train --li") == ["--list"]
    assert about("train --li")["--list"] == "list the recipes and stop"
    # An option that has been given is not offered again, unless it may be repeated.
    assert found("train --list --li") == []
    assert found("check-env x --set a=1 --se") == ["--set"]
    assert found("logs run --level W") == ["WARNING"]
    assert found("logs run --level=W") == ["--level=WARNING"]
    assert found("export run --to ") == ["safetensors", "hf"]
    # A folder may follow: the shell completes it.
    assert found("train --config-path ") == []
    assert found("completion ") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("command", ["train", "eval", "check", "verify", "check-env"])
def test_recipes(command: str) -> None:
    assert found(f"{command} my_r") == ["my_robot"]
    assert about(f"{command} my_r")["my_robot"] == "Walks."
    assert "metaworld_ppo_mlp" in found(f"{command} meta")
    assert "loose.yaml" in found(f"{command} ")
    assert "my_robot" in found(f"{command} --json ")


@pytest.mark.parametrize("line", ["report ", "trace ", "logs ", "bisect ", "bisect a ", "export "])
def test_runs(line: str) -> None:
    assert found(line) == ["logs/old", "logs/robot"]
    assert found(f"{line}logs/o") == ["logs/old"]
    assert found(f"{line}logs/old/") == [
        "logs/old/20260101-000000-aaaa",
        "logs/old/20260102-000000-bbbb",
    ]
    assert found(f"{line}nowhere/") == []


def test_eval_takes_runs_and_checkpoints_too() -> None:
    assert found("eval logs/r") == ["logs/robot"]
    folder = "logs/robot/20260103-000000-c/checkpoints"
    assert found(f"eval {folder}/") == [f"{folder}/global_step_30"]
    assert found("train logs/r") == []


def test_keys_one_part_after_the_other() -> None:
    assert {"runner.", "actor.", "env."} <= set(found("train my_robot "))
    assert found("train my_robot runner.max_st") == ["runner.max_steps="]
    assert "Global steps" in about("train my_robot runner.max_st")["runner.max_steps="]
    assert "runner.logger." in found("train my_robot runner.")
    assert "runner.logger.log_path=" not in found("train my_robot runner.")
    assert found("train my_robot runner.logger.log_") == ["runner.logger.log_path="]
    assert found("check my_robot ++runner.max_st") == ["++runner.max_steps="]
    assert "cluster.component_placement.env=" in found("train x cluster.component_placement.")
    # After another override, and after an option.
    assert found("train my_robot a=1 --dry-run runner.max_st") == ["runner.max_steps="]


def test_keys_of_plug_ins() -> None:
    assert "env.train.task=" in found("train x env.train.ta")
    assert "actor.model.hidden_sizes=" in found("train x actor.model.hid")
    assert "reward.partial_credit=" in found("train x reward.part")
    assert "task=" in found("check-env MT10 --set ta")


def test_values_of_keys() -> None:
    assert found("train x runner.on_nan=") == ["runner.on_nan=stop", "runner.on_nan=skip"]
    assert found("train x runner.trace=t") == ["runner.trace=true"]
    assert "env.train.env_type=metaworld" in found("train x env.train.env_type=")
    assert "algorithm.adv_type=gae" in found("train x algorithm.adv_type=")
    assert found("train x runner.seed=") == []
    assert found("train x no.such.key=") == []


def test_nothing_heavy_is_imported(here: Path) -> None:
    program = (
        "import sys\n"
        "from rlinf.cli import main\n"
        "for line in (['train', 'my_r'], ['report', ''], ['train', 'x', 'runner.max_st']):\n"
        "    main(['__complete', *line])\n"
        "heavy = ('torch', 'ray', 'hydra', 'omegaconf', 'numpy', 'pydantic')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    for expected in ("['pydantic']", "[]"):
        # The first time the schema is read; from then on it is kept.
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        *lines, imported = done.stdout.splitlines()
        assert [line.partition("\t")[0] for line in lines] == [
            "my_robot",
            "logs/old",
            "logs/robot",
            "runner.max_steps=",
        ]
        assert imported == expected
