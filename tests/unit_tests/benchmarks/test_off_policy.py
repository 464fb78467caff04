"""What `benchmarks.off_policy` asks of its contestants, and what it tells of their answers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from benchmarks import cells, harness, off_policy
from rlinf.cli import curves
from rlinf.config import build_config, validate_cfg


def line(part: str, who: str, seed: int, **found: Any) -> dict[str, Any]:
    given = {"returns": [1.0, 100.0 * seed], "success": [0.2, 0.95], "env_steps": [512, 1024]}
    times = {"updates": 400, "update_seconds": 2.0, "training_seconds": 3.0, "wall_seconds": 9.0}
    task = off_policy.BUTTON
    return {
        "part": part, "task": task, "contestant": who, "seed": seed, **given, **times, **found
    }  # fmt: skip


@pytest.mark.parametrize("cell", cells.choose(off_policy.PARTS, seed=2), ids=str)
def test_what_a_cell_asks_for_can_be_done(cell) -> None:
    asked = off_policy.arguments_of(cell)
    entry = off_policy.entry_of(cell, sb3="python-of-sb3", cores=2)
    if entry.program == "off_policy_sb3.py":
        assert entry.python == "python-of-sb3" and asked["steps"] == 40_000
        assert entry.env["OMP_NUM_THREADS"] == ("2" if cell.contestant == off_policy.SB3 else "1")
        return
    cfg = validate_cfg(build_config(asked["recipe"], asked["overrides"]))
    train, rollout = cfg.env.train, cfg.env.train.total_num_envs * 8
    assert train.max_steps_per_rollout_epoch == 8 and cfg.runner.seed == 2
    few = cell.contestant in (off_policy.RLPD, off_policy.SPARSE)
    beside = 24_000 if cell.part == "rlpd" else 40_000
    assert cfg.runner.max_epochs * rollout == (8_000 if few else beside)
    assert cfg.algorithm.update_epoch == rollout * (4 if few else 1)
    assert cfg.actor.global_batch_size == 256
    assert list(cfg.actor.model.hidden_sizes) == [128, 128]
    if few:
        assert cfg.algorithm.demo_buffer.demo_ratio == 0.5 and cfg.actor.model.num_q_heads == 4
        assert cfg.collect.episodes == 20
        assert asked["collect"]["overrides"] == asked["overrides"]
        assert train.reward == ("success" if cell.contestant == off_policy.SPARSE else "dense")
        assert cfg.runner.eval_episodes == 100 and cfg.env.eval.goals == "random"


def test_tables() -> None:
    lines = [line("sac", off_policy.OURS, seed) for seed in (1, 2, 3)]
    lines += [line("rlpd", off_policy.SAC, 1), line("rlpd", off_policy.SAC, 2, success=[0.9, 1.0])]
    lines += [line("rlpd", off_policy.RLPD, 1, success=[0.1, 0.5])]
    expected = "| button-press-v3 | ours | 3 | 200 [100–300] | 3 [3–3] | 200 [200–200] | 95% |"
    assert expected in off_policy.sac_table(lines)
    table = off_policy.rlpd_table(lines)
    assert "| button-press-v3 | SAC | 1,024, 512 | 768 | 98% |" in table
    assert "| button-press-v3 | RLPD | not reached | not reached | 50% |" in table


def test_one_cell_alone(monkeypatch, tmp_path, capsys) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "answer.py").write_text((harness.PROGRAMS / "answer.py").read_text())
    (programs / "training_rlinf.py").write_text(
        "from answer import serve\n"
        "class Fake:\n"
        "    def train(self, recipe, overrides):\n"
        "        assert recipe == 'metaworld_sac_mlp' and 'runner.seed=3' in overrides\n"
        "        return {'returns': [7.0], 'success': [1.0], 'env_steps': [64], 'updates': 64,\n"
        "                'update_seconds': 1.0, 'training_seconds': 2.0, 'wall_seconds': 3.0}\n"
        "    def stop(self):\n"
        "        pass\n"
        "serve(Fake())\n"
    )
    monkeypatch.setattr(harness, "PROGRAMS", programs)
    file = tmp_path / "cells.jsonl"
    one = ["--part", "sac", "--task", off_policy.BUTTON, "--contestant", "ours", "--seed", "3"]
    assert (
        off_policy.main([*one, "--steps", "64", "--json", str(file), "--sb3", sys.executable]) == 0
    )
    written = json.loads(file.read_text())
    assert written["seed"] == 3 and written["returns"] == [7.0] and written["cores"] >= 1
    assert "| button-press-v3 | ours | 1 | 7 | 2 | 64 | 100% |" in capsys.readouterr().out
    assert off_policy.main(["--read", str(file)]) == 0
    with pytest.raises(SystemExit):
        off_policy.main(["--task", "no-such-task"])


def test_cells_of_recipes_become_their_curves(monkeypatch, tmp_path, capsys) -> None:
    facts = {"machine": "far away", "date": "2026-01-02", "episodes": [100, 100]}
    lines = [line("rlpd", off_policy.SPARSE, seed, **facts) for seed in (1, 2)]
    # One seed makes no band, and SB3 is no recipe.
    lines += [line("sac", off_policy.OURS, 1, **facts, task=off_policy.CHEETAH)]
    lines += [line("sac", off_policy.SB3, seed, **facts) for seed in (1, 2)]
    file = tmp_path / "cells.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(curves, "path_for", lambda _, name: tmp_path / f"{name}.json")
    assert off_policy.main(["--read", str(file), "--write"]) == 0
    (written,) = tmp_path.glob("*.json")
    found = curves.load(written)
    assert found.recipe == "metaworld_rlpd_mlp" and list(found.curves) == [1, 2]
    assert found.steps == [512, 1024] and found.facts["machine"] == "far away"
    assert "env.train.reward=success" in found.overrides
    assert not any(word.startswith("runner.seed") for word in found.overrides)
    assert f"{written}: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        off_policy.main(["--write"])
