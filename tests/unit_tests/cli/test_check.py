from __future__ import annotations

import json
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
    assert "cluster" in schema["properties"]


def test_without_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "CONFIG" in capsys.readouterr().err


def test_a_wrong_number_of_gpus(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["check", str(embodied), "--gpus-per-node", "-1"])
    assert left.value.code == 2
