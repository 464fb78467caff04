"""What `benchmarks.learning` tells of runs, and what it leaves for `rlinf verify`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness, learning
from benchmarks.learning import Run
from rlinf.cli import curves, recipes
from rlinf.cli.curves import Curve

STEPS = [20_000, 40_000, 61_000]


def run(seed: int, success: list[float]) -> Run:
    found = {"success_once": success, "return": success}
    return Run(seed, Curve(STEPS, [60, 60, 120], found), 61_000, 30.5, 44.4)


def test_the_table_has_a_line_per_seed() -> None:
    lines = learning.table([run(0, [0.0, 0.96, 1.0]), run(1, [0.0, 0.5, 0.9])]).splitlines()
    assert lines[2] == "| 0 | 40,000 | 100% (120) | 1 | 44 | 2,000 |"
    assert lines[3] == "| 1 | not in 61,000 | 90% (120) | 1 | 44 | 2,000 |"


def test_only_seeds_that_are_soon_enough_count() -> None:
    good, late, never = [0.0, 0.95, 1.0], [0.0, 0.9, 0.95], [0.0, 0.0, 0.9]
    assert learning.conclusion([run(0, good), run(1, good)], asked=2) == (
        "2 of 2 seeds reached 95% evaluated success within 60,000 env steps (aim: all): met"
    )
    told = learning.conclusion([run(0, good), run(1, late), run(2, never)], asked=4)
    assert told.startswith("1 of 4 seeds") and told.endswith("**missed**")
    without = [run(0, [0.0, 0.0, 0.0])]
    assert learning.conclusion(without, asked=1) == (
        "no episode of any seed counted as a success; final returns of 1 of 1 seeds: 0 to 0"
    )


def test_speed_counts_training_alone(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "time/step": 0.5, "env/total_steps": 1600.0},
        {"step": 1, "eval/episodes": 60.0, "eval/success_once": 0.1, "eval/return": 5.0},
        {"step": 2, "time/step": 0.3, "env/total_steps": 3200.0},
        {"step": 2, "eval/episodes": 60.0, "eval/success_once": 1.0, "eval/return": 9.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = learning.read_run(tmp_path, seed=3, wall_seconds=9.0)
    assert found.env_steps == 3200 and found.training_seconds == pytest.approx(0.8)
    assert found.steps_to_goal == 3200 and found.reached


def test_evaluations_are_cheap_and_the_last_step_has_one() -> None:
    overrides = learning.evaluation_overrides("metaworld_ppo_mlp", [])
    # 30 steps: the last of the evaluations is the final one.
    assert "runner.val_check_interval=3" in overrides
    longer = learning.evaluation_overrides("metaworld_ppo_mlp", ["runner.max_epochs=200"])
    assert "runner.val_check_interval=20" in longer


SCRIPT = """\
import json, pathlib, sys
given = dict(arg.lstrip("+").split("=", 1) for arg in sys.argv if "=" in arg)
seed = int(given["runner.seed"])
if seed == 13:
    sys.exit("no luck")
folder = pathlib.Path(given["runner.logger.log_path"], given["runner.logger.experiment_name"])
folder.mkdir(parents=True)
lines = []
for step in (1, 2, 3):
    lines.append({"step": step, "env/total_steps": 8000.0 * step, "time/step": 4.0})
    success = min(1.0, (step + seed) / 3)
    lines.append({"step": step, "eval/episodes": 60, "eval/success_once": success})
    lines[-1]["eval/return"] = 1.0
(folder / "metrics.jsonl").write_text("\\n".join(map(json.dumps, lines)))
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has a recipe whose script writes the metrics of a run."""
    config = tmp_path / "examples" / "embodiment" / "config"
    config.mkdir(parents=True)
    recipe = "defaults: [metaworld_ppo_mlp, _self_]\nhydra: {searchpath: [file://%s]}\n"
    source = recipes.SOURCE / "examples" / "embodiment" / "config"
    (config / "mine.yaml").write_text(recipe % source)
    (config.parent / "train_embodied_agent.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(recipes.SOURCE))
    monkeypatch.setattr(learning, "busy_share", lambda: 0.0)
    monkeypatch.setattr(learning.signal, "signal", lambda *_: None)
    return tmp_path


def test_a_whole_benchmark_writes_a_curve_file(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--recipe", "mine", "--seeds", "2", "--write", "--log-path", str(tree / "logs")]
    options += ["--json", str(tree / "runs.json"), "actor.optim.lr=2e-3"]
    assert learning.main(options) == 0
    printed = capsys.readouterr().out
    assert "| 0 | 24,000 | 100% (60) |" in printed and "| 1 | 16,000 | 100% (60) |" in printed
    assert "2 of 2 seeds reached 95%" in printed.splitlines()[-1]
    assert "seeds stay inside the band of the others (success_once)" in printed
    written = curves.load(tree / "examples" / "embodiment" / "curves" / "mine.json")
    assert written.env_steps == [8000, 16000, 24000] and list(written.curves) == [0, 1]
    # A run to compare needs the same settings.
    assert "actor.optim.lr=2e-3" in written.overrides
    assert written.facts["versions"]["torch"] and "--write" in written.facts["command"]
    assert len(json.loads((tree / "runs.json").read_text())["runs"]) == 2


def test_a_seed_that_fails_does_not_stop_the_others(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--recipe", "mine", "--first-seed", "12", "--seeds", "3", "--write"]
    assert learning.main([*options, "--jobs", "2", "--log-path", str(tree / "logs")]) == 1
    printed = capsys.readouterr().out
    assert "| 12 |" in printed and "| 14 |" in printed
    assert "FAILED seed 13 ended with exit code 1" in printed
    assert "2 of 3 seeds" in printed and "2 seeds at a time: **speeds do not count**" in printed
    assert not (tree / "examples" / "embodiment" / "curves").exists()


def test_help_tells_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.learning", "--help"],
        capture_output=True,
        text=True,
        cwd=harness.ROOT,
        check=True,
    ).stdout
    assert "python -m benchmarks.learning --write" in told and "--quick" in told
