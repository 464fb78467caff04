"""What `benchmarks.learning` tells of runs, and what it leaves for `rlinf verify`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness, learning
from benchmarks.learning import Run
from rlinf.cli import curves
from rlinf.cli.curves import Curve
from rlinf.config import build_config, validate_cfg
from rlinf.config.load import shipped_folder

STEPS = [20_000, 40_000, 61_000]


def run(seed: int, success: list[float]) -> Run:
    found = {"success_once": success, "return": success}
    return Run(seed, Curve(STEPS, [60, 60, 120], found), 61_000, 30.5, 44.4)


def test_the_table_has_a_line_per_seed() -> None:
    lines = learning.table([run(0, [0.0, 0.96, 1.0]), run(1, [0.0, 0.5, 0.9])]).splitlines()
    assert lines[2] == "| 0 | 40,000 | 100% (120) | 1 | 61,000 | 44 | 2,000 |"
    assert lines[3] == "| 1 | not reached | 90% (120) | 1 | 61,000 | 44 | 2,000 |"


def test_where_nothing_counts_as_success_returns_are_told() -> None:
    found = {"success_once": [0.0] * 3, "return": [-300.0, 800.0, 2100.0]}
    runs = [Run(seed, Curve(STEPS, [20] * 3, found), 61_000, 30.5, 44.4) for seed in (0, 1)]
    lines = learning.table(runs).splitlines()
    assert lines[0] == "| seed | final return | env steps | wall (s) | env steps/s |"
    assert lines[2] == "| 0 | 2,100 | 61,000 | 44 | 2,000 |"
    assert learning.conclusion(runs, asked=3, within=60_000) == (
        "no episode of any seed counted as a success; returns of 2 of 3 seeds: first -300 to -300, "
        "final 2,100 to 2,100"
    )


def test_only_seeds_that_are_soon_enough_count() -> None:
    good, late, never = [0.0, 0.95, 1.0], [0.0, 0.9, 0.95], [0.0, 0.0, 0.9]
    assert learning.conclusion([run(0, good), run(1, good)], asked=2, within=60_000) == (
        "2 of 2 seeds reached 95% evaluated success within 60,000 env steps (aim: all): met"
    )
    told = learning.conclusion([run(0, good), run(1, late), run(2, never)], 4, within=60_000)
    assert told.startswith("1 of 4 seeds") and told.endswith("**missed**")
    # Recipes without an aim of their own have as long as they take.
    assert learning.conclusion([run(0, good), run(1, late)], asked=2) == (
        "2 of 2 seeds reached 95% evaluated success within 61,000 env steps (aim: all): met"
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
    assert found.steps == 3200 and found.training_seconds == pytest.approx(0.8)
    assert found.steps_to_goal == 3200 and found.reached(3200) and not found.reached(3199)


def test_evaluations_are_cheap_and_the_last_step_has_one() -> None:
    overrides = learning.evaluation_overrides("metaworld_ppo_mlp", [])
    # 30 steps: the last of the evaluations is the final one.
    assert "runner.val_check_interval=3" in overrides
    longer = learning.evaluation_overrides("metaworld_ppo_mlp", ["runner.max_epochs=200"])
    assert "runner.val_check_interval=20" in longer
    fewer = learning.evaluation_overrides("gymnasium_ppo_mlp", [], episodes=20)
    assert "runner.eval_episodes=20" in fewer


def test_recipes_with_data_say_where_they_go() -> None:
    found = {
        recipe: learning.data_key(validate_cfg(build_config(recipe, [])))
        for recipe in (
            "metaworld_bc_mlp",
            "metaworld_rlpd_mlp",
            "metaworld_sft_oft",
            "metaworld_ppo_mlp",
        )
    }
    assert found.pop("metaworld_ppo_mlp") is None
    for recipe in found:
        # What is collected with it is what is learned from.
        cfg = validate_cfg(build_config(recipe, [found[recipe].format("/d")]))
        assert cfg.collect.save_dir == "/d"


SCRIPT = """\
import json, pathlib, sys
given = dict(arg.lstrip("+").split("=", 1) for arg in sys.argv if "=" in arg)
seed = int(given["runner.seed"])
if seed == 13:
    sys.exit("no luck")
folder = pathlib.Path(given["runner.run_dir"])
folder.mkdir(parents=True)
lines = []
for step in (1, 2, 3):
    lines.append({"step": step, "env/total_steps": 8000.0 * step, "time/step": 4.0})
    success = min(1.0, (step + seed) / 3)
    lines.append({"step": step, "eval/episodes": 60, "eval/success_once": success})
    lines[-1]["eval/return"] = 1.0
(folder / "metrics.jsonl").write_text("\\n".join(map(json.dumps, lines)))
status = "running" if seed == 7 else "finished"
summary = {"seed": seed, "status": status, "wall_seconds": 12.5}
(folder / "summary.json").write_text(json.dumps(summary))
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has a recipe whose script writes the metrics of a run."""
    config = tmp_path / "examples" / "embodiment" / "config"
    config.mkdir(parents=True)
    recipe = "defaults: [metaworld_ppo_mlp, _self_]\nhydra: {searchpath: [file://%s]}\n"
    source = shipped_folder() / "examples" / "embodiment" / "config"
    (config / "mine.yaml").write_text(recipe % source)
    (config.parent / "train_embodied_agent.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(shipped_folder()))
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
    assert written.steps == [8000, 16000, 24000] and list(written.curves) == [0, 1]
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


def test_seeds_at_a_time_end_with_the_benchmark(tmp_path: Path) -> None:
    program = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from benchmarks import learning

both_run = threading.Barrier(2)

def train(recipe, seed, *_):
    with subprocess.Popen(["sleep", "600"]) as process:
        if both_run.wait() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        os.write(1, b"ended by %d." % -process.wait())
    raise learning.RunFailed("ended")

learning.train = train
learning.main(["--seeds", "3", "--jobs", "2", "--log-path", sys.argv[1]])
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 143, done.stderr
    # The third one has not begun.
    assert done.stdout.count("ended by 15.") == 2


def test_data_are_collected_before_a_recipe_learns_from_them(tree: Path) -> None:
    config = tree / "examples" / "embodiment" / "config"
    recipe = (config / "mine.yaml").read_text().replace("metaworld_ppo_mlp", "metaworld_bc_mlp")
    (config / "cloned.yaml").write_text(recipe)
    script = SCRIPT.replace(
        "lines = []",
        'assert (pathlib.Path(given["data.train_data_paths"][1:-1]) / "meta").is_dir()\nlines = []',
    )
    (config.parent / "train_offline.py").write_text(script)
    options = ["--recipe", "cloned", "--seeds", "2", "--log-path", str(tree / "logs")]
    options += ["collect.episodes=1", "collect.num_envs=1", "env.train.max_episode_steps=3"]
    assert learning.main(options) == 0
    assert len(list((tree / "logs").glob("*/*.data/meta/collect.json"))) == 2


def test_each_seed_starts_from_its_own_run_of_another_recipe(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = made(tree, "first", 0, "--seeds", "2")
    script = SCRIPT.replace(
        "lines = []", 'lines = [{"began": given["runner.ckpt_path"], "step": 0}]'
    )
    (tree / "examples" / "embodiment" / "train_embodied_agent.py").write_text(script)
    options = ["--recipe", "mine", "--log-path", str(tree / "second"), "--from", str(first)]
    assert learning.main([*options, "--seeds", "2"]) == 0
    for seed in (0, 1):
        (metrics,) = (tree / "second").glob(f"*/mine-seed{seed}/metrics.jsonl")
        began = json.loads(metrics.read_text().splitlines()[0])["began"]
        assert Path(began) == first / f"mine-seed{seed}"
    with pytest.raises(SystemExit):
        learning.main([*options, "--seeds", "3"])
    assert "has no finished run of the seeds [2]" in capsys.readouterr().err


def made(tree: Path, name: str, seed: int, *options: str) -> Path:
    """The folder that a benchmark of one seed leaves behind."""
    place = tree / name
    options = ("--recipe", "mine", "--seeds", "1", "--first-seed", str(seed), *options)
    assert learning.main([*options, "--log-path", str(place)]) == 0
    [folder] = place.iterdir()
    return folder


def test_runs_of_several_times_make_one_curve_file(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--eval-episodes", "20", "actor.optim.lr=2e-3")
    with monkeypatch.context() as there:
        there.setattr(learning, "describe_machine", lambda: "a machine far away")
        folders = [made(tree, f"run{seed}", seed, *options) for seed in (1, 0, 7)]
    capsys.readouterr()
    assert learning.main(["--read", *map(str, folders), "--write"]) == 0
    printed = capsys.readouterr()
    assert "seed 7" in printed.err and "| 7 |" not in printed.out
    assert "| 0 | 24,000 | 100% (60) | 1 | 24,000 | 12 | 2,000 |" in printed.out
    written = curves.load(tree / "examples" / "embodiment" / "curves" / "mine.json")
    assert list(written.curves) == [0, 1]
    assert written.facts["machine"] == "a machine far away"
    assert {"runner.eval_episodes=20", "actor.optim.lr=2e-3"} <= set(written.overrides)


def test_runs_that_do_not_belong_together_are_told(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, same = made(tree, "one", 0), made(tree, "same", 0)
    other = made(tree, "other", 1, "actor.optim.lr=2e-3")
    for folders, told in [
        ([one, other], "do not belong together: overrides"),
        ([one, same], "has seed 0, as another"),
        ([tree], "about.json is not there"),
    ]:
        with pytest.raises(SystemExit):
            learning.main(["--read", *map(str, folders)])
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        learning.main(["actor.optim.lr=1", "--read", str(one)])
    assert "--read trains nothing" in capsys.readouterr().err


def test_help_tells_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.learning", "--help"],
        capture_output=True,
        text=True,
        cwd=harness.ROOT,
        check=True,
    ).stdout
    assert "python -m benchmarks.learning --write" in told and "--quick" in told


def answers(seed: int, rates: list[float]) -> Run:
    found = {"pass@1": rates, "pass@1_no_tools": [0.0, 0.0, 0.05]}
    curve = Curve([0, 20, 40], [200] * 3, found, "training steps")
    return Run(seed, curve, 40, 100.0, 150.4)


def test_agents_are_told_by_what_they_answer_before_and_after() -> None:
    lines = learning.table([answers(0, [0.3, 0.8, 0.945])]).splitlines()
    assert lines[0] == (
        "| seed | first pass@1 | final pass@1 (n) | pass@1_no_tools | training steps | wall (s) | "
        "s/step |"
    )
    assert lines[2] == "| 0 | 30.0% | 94.5% (200) | 5.0% | 40 | 150 | 2.50 |"


def test_agents_have_learned_if_they_answer_better_than_by_chance() -> None:
    good, little = answers(0, [0.3, 0.5, 0.6]), answers(1, [0.3, 0.6, 0.45])
    assert learning.conclusion([good, good], asked=2) == (
        "2 of 2 seeds answer at least 20 points better than before the training, with disjoint 95% "
        "intervals (aim: all): met"
    )
    assert "**missed**" in learning.conclusion([good, little], asked=2)
    few = Run(2, Curve([0, 40], [10, 10], {"pass@1": [0.3, 0.6]}, "training steps"), 40, 1.0, 1.0)
    assert not few.gained, "with ten questions, that may be chance"


def test_an_agent_is_asked_before_its_training_as_often_as_its_recipe_says() -> None:
    overrides = learning.evaluation_overrides("searchr1_small", [])
    assert "runner.val_check_interval=4" in overrides and "runner.eval_at_start=true" in overrides
    assert not any("env.eval" in each or "val_size" in each for each in overrides)
    assert "data.val_size=50" in learning.evaluation_overrides("searchr1_small", [], episodes=50)
    for recipe in ("searchr1_small", "arithmetic_grpo", "coding_online"):
        # What is set is known to the recipe.
        validate_cfg(build_config(recipe, learning.evaluation_overrides(recipe, [], 50)))


AGENT_SCRIPT = """\
import json, pathlib, sys
given = dict(arg.lstrip("+").split("=", 1) for arg in sys.argv if "=" in arg)
folder = pathlib.Path(given["runner.run_dir"])
folder.mkdir(parents=True)
seed = int(given["runner.seed"])
lines = [{"step": 0, "eval/prompts": 400.0, "eval/pass@1": 0.25}]
for step in (4, 8):
    lines.append({"step": step, "time/step": 2.0})
    lines.append({"step": step, "eval/prompts": 400.0, "eval/pass@1": (step + seed) / 10})
(folder / "metrics.jsonl").write_text("\\n".join(map(json.dumps, lines)))
(folder / "summary.json").write_text(json.dumps({"status": "finished", "seed": seed}))
"""


def test_a_benchmark_of_an_agent_writes_a_curve_file_beside_its_recipe(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tree / "examples" / "agents" / "config"
    config.mkdir(parents=True)
    source = shipped_folder() / "examples" / "agents" / "config"
    recipe = "defaults: [searchr1_small, _self_]\nhydra: {searchpath: [file://%s]}\n"
    (config / "asks.yaml").write_text(recipe % source)
    (config.parent / "main_agent.py").write_text(AGENT_SCRIPT)
    options = ["--recipe", "asks", "--seeds", "3", "--write", "--log-path", str(tree / "logs")]
    assert learning.main(options) == 0
    printed = capsys.readouterr().out
    assert "| 2 | 25.0% | 100.0% (400) | 8 |" in printed
    assert "3 of 3 seeds answer at least 20 points better" in printed
    written = curves.load(tree / "examples" / "agents" / "curves" / "asks.json")
    assert written.metric == "pass@1" and written.steps == [0, 4, 8]
    assert written.unit == "training steps" and list(written.curves) == [0, 1, 2]
