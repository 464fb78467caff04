"""What `benchmarks.from_data` asks of its contestants, and what it tells of their answers."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from benchmarks import cells, from_data, harness
from rlinf.config import build_config, validate_cfg


def line(part: str, who: str, seed: int, success: float, **found: Any) -> dict[str, Any]:
    task = from_data.PARTS[part]["tasks"][0]
    own = {"part": part, "task": task, "contestant": who, "seed": seed}
    return {**own, "success": [0.0, success], "labels": 2000, "updates": 4000, **found}


@pytest.mark.parametrize("cell", cells.choose(from_data.PARTS, seed=2), ids=str)
def test_what_a_cell_asks_for_can_be_done(cell) -> None:
    asked = from_data.arguments_of(cell)
    folder = [asked["data"].format("/somewhere")] if "data" in asked else []
    cfg = validate_cfg(build_config(asked["recipe"], [*asked["overrides"], *folder]))
    assert cfg.runner.seed == 2 and cfg.runner.eval_episodes == 100
    assert cfg.env.eval.task == cell.task and cfg.env.eval.goals == "random"
    updates = from_data.UPDATES[cell.part]
    if cell.contestant in from_data.ROUNDS:
        # DAgger has as many labels as demonstrations have frames; HG-DAgger's are known afterwards.
        train = cfg.env.train
        steps = cfg.runner.max_epochs * train.total_num_envs * train.max_steps_per_rollout_epoch
        if cell.contestant == from_data.DAGGER:
            assert steps == from_data.EPISODES["dagger"] * from_data.HORIZON
        only = cell.contestant == from_data.HG_DAGGER
        assert cfg.algorithm.dagger.only_save_expert is only
        assert cfg.algorithm.update_epoch * cfg.runner.max_epochs == updates
        return
    assert cfg.runner.max_steps * cfg.runner.local_update_steps == updates
    assert list(cfg.data.train_data_paths) == ["/somewhere"]
    source = validate_cfg(build_config(asked["collect"]["recipe"], asked["collect"]["overrides"]))
    assert source.collect.episodes == from_data.EPISODES[cell.part]
    assert source.runner.seed == 2 and source.collect.policy == "scripted"
    # Only implicit Q-learning and who is beside it have bad episodes.
    assert (source.collect.noise != 0.0) == (cell.part == "iql")


def test_the_table_says_which_aims_are_met() -> None:
    lines = [line("bc", "BC", seed, share) for seed, share in ((2, 0.7), (1, 0.9), (3, 0.8))]
    lines += [line("dagger", "BC", 1, 0.6), line("dagger", "DAgger", 1, 0.5)]
    lines += [line("dagger", "HG-DAgger", s, 0.7, labels=s * 500) for s in (1, 2, 3)]
    lines += [line("iql", "IQL", 1, 0.7)]
    told = from_data.table(lines)
    assert "| 2,000 | 4,000 | 90%, 70%, 80% | 80% | ≥ 80%: met |" in told
    assert "| BC | 2,000 | 4,000 | 60% | 60% |  |" in told
    assert "| DAgger | 2,000 | 4,000 | 50% | 50% |  |" in told
    assert "| 500–1,500 | 4,000 | 70%, 70%, 70% | 70% | BC + 10 points: met |" in told
    assert "BC is missing" in told
    assert "missed" in from_data.verdict("dagger", "HG-DAgger", 0.69, 0.6)
    assert "missed" in from_data.verdict("iql", "IQL", 0.5, 0.5)
    assert "missed" in from_data.verdict("bc", "BC", 0.79, None)


def test_a_run_without_rollouts_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(harness.PROGRAMS)
    training = importlib.import_module("training_rlinf")
    (tmp_path / "summary.json").write_text(json.dumps({"gradient_updates": 200}))
    lines = [
        {"step": 1, "time/step": 2.0, "time/training": 1.5, "train/data/samples": 700.0},
        {"step": 2, "time/step": 2.0, "time/training": 1.5, "train/data/samples": 700.0},
        {"step": 2, "eval/episodes": 100.0, "eval/success_once": 0.8, "eval/return": 5.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = training.read_run(tmp_path)
    assert found["success"] == [0.8] and found["labels"] == 700 and found["updates"] == 200
    assert found["training_seconds"] == 4.0 and found["env_steps"] == [0]
