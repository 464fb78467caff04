from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlinf.cli import main


def test_a_valid_config_shows_placement_and_arithmetic(
    embodied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(embodied), "--gpus-per-node", "8"]) == 0
    out = capsys.readouterr().out
    assert "valid, task type embodied" in out
    assert "actor + env share node 0 gpu 0-3" in out
    assert "16 envs × 64 steps × 1 epoch = 1024 samples → 4 minibatches of 256" in out


def test_json_has_every_process(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(embodied), "--json", "--gpus-per-node", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["problems"] == []
    assert [len(report["placement"][name]) for name in ("actor", "env", "rollout")] == [8, 4, 4]
    assert report["placement"]["rollout"][0] == {
        "rank": 0,
        "node": 0,
        "kind": "cpu",
        "devices": [4],
    }


def test_overrides_are_checked_too(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(embodied), "actor.optim.learning_rate=1"]) == 1
    error = capsys.readouterr().err
    assert "actor.optim.learning_rate" in error and "lr" in error


def test_all_problems_come_at_once(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["cluster.num_nods=2", "actor.micro_batch_size=-1"]
    assert main(["check", str(embodied), *wrong]) == 1
    error = capsys.readouterr().err
    assert "num_nodes" in error and "actor.micro_batch_size" in error


def test_problems_as_json(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(embodied), "cluster.num_nods=2", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert [problem["path"] for problem in report["problems"]] == ["cluster.num_nods"]


def test_ranks_that_the_nodes_do_not_have(
    embodied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(embodied), "--gpus-per-node", "4"]) == 1
    error = capsys.readouterr().err
    assert "cluster.component_placement.actor" in error and "^" in error


def test_config_path_and_name(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", embodied.stem, "--config-path", str(embodied.parent)]) == 0
    assert main(["check", "tiny_pop", "--config-path", str(embodied.parent)]) == 1
    assert "tiny_ppo" in capsys.readouterr().err


def test_schema_is_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["required"] == ["runner"] and "ClusterConfig" in schema["$defs"]


def test_without_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "CONFIG" in capsys.readouterr().err


def test_a_wrong_number_of_gpus(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["check", str(embodied), "--gpus-per-node", "-1"])
    assert left.value.code == 2


def test_what_is_named_and_not_there_is_told_with_memory_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here.jsonl"
    here.touch()
    overrides = [
        "actor.model.model_path=/no/such/model",
        "data.type=files",
        *(f"~data.{key}" for key in ("digits", "held_out", "val_size")),
        f"data.train_data_paths=[{here},/no/such/data.jsonl]",
        f"data.val_data_paths=[{here}]",
        "runner.resume_dir=auto",
    ]
    for further in (["--no-memory"], []):
        assert main(["check", "arithmetic_grpo", *overrides, *further]) == 0
        out = capsys.readouterr().out
        assert "actor.model.model_path: there is no /no/such/model on this machine" in out
        assert "it must be a folder with weights" in out and "rlinf fetch smollm2" in out
        assert "data.train_data_paths: there is no /no/such/data.jsonl" in out
        assert "here.jsonl on" not in out and "resume_dir" not in out
    assert main(["check", "arithmetic_grpo", *overrides, "--no-memory", "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert sorted(problem["path"] for problem in missing) == [
        "actor.model.model_path",
        "data.train_data_paths",
    ]
    assert main(["check", "arithmetic_grpo", "--no-memory"]) == 0
    assert "not on this machine" not in capsys.readouterr().out


def test_inference_beside_collocated_actor_and_rollout_as_the_entry_script_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = [
        "cluster.component_placement={actor:0-1,rollout:0-1,reward:0,inference:0-1}",
        "algorithm.recompute_logprobs=true",
    ]
    assert main(["check", "arithmetic_grpo", *overrides, "--json", "--gpus-per-node", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [process["devices"] for process in report["placement"]["inference"]] == [[0], [1]]
    assert "inference" in report["memory"]


def test_a_distribution_that_does_not_fit_the_env_is_told_without_a_cluster(
    embodied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", str(embodied), "--gpus-per-node", "0", "--no-memory"]
    assert main([*command, "+actor.model.distribution=gaussian"]) == 1
    error = capsys.readouterr().err
    assert 'actor.model.distribution = "gaussian"' in error
    assert "takes a choice out of 2" in error and "set it to auto or categorical" in error
    assert main([*command, "+actor.model.distribution=categorical"]) == 0
    numbers = ["env.train.id=Pendulum-v1", "+actor.model.distribution=multi_categorical"]
    assert main([*command, *numbers]) == 1
    assert "takes real numbers" in capsys.readouterr().err
    assert main([*command, "+actor.model.distribution=gausian"]) == 1
    assert "multi_categorical" in capsys.readouterr().err


def test_packages_that_are_not_here_are_told_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    monkeypatch.setitem(sys.modules, "swanlab", None)
    arguments = ["check", "metaworld_ppo_mlp", "runner.logger.logger_backends=[swanlab]"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "packages that the run needs and this Python does not have" in out
    assert '  env.train.env_type = "metaworld": metaworld\n' in out
    assert "pip install -e" in out and "[embodied,tracking]" in out
    assert main([*arguments, "--json", "--no-memory"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [item["modules"] for item in report["missing_extras"]] == [["metaworld"], ["swanlab"]]
    assert "[embodied,tracking]" in report["install"]
