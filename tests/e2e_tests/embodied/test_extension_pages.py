"""The pages "add your env, policy, algorithm, learner": what they show trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlinf.utils.runs import find_run

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = {
    "extend_env": "windy",
    "extend_policy": "waves",
    "extend_algorithm": "weighted",
    "extend_learner": "imitation",
}


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def overrides_of(page: str) -> list[str]:
    found = re.findall(r"algorithm\.\w+=\w+", blocks(page, "bash")[0])
    assert len(found) == 2
    return found


def rlinf(folder: Path, address: str, *arguments: str) -> str:
    """Runs the command with all modules of the pages; returns what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "RLINF_EXT_MODULE": ",".join(PAGES.values()),
            "RAY_ADDRESS": address,
        },
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for page, module in PAGES.items():
        (tmp_path / f"{module}.py").write_text(blocks(page, "python")[0])
    for page in ("extend_env", "extend_policy"):
        (recipe,) = blocks(page, r"\{code-block\} yaml")
        (tmp_path / f"{page}.yaml").write_text(recipe)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_an_example_is_short(page: str) -> None:
    assert len(blocks(page, "python")[0].splitlines()) < 50


@pytest.mark.timeout(180)
def test_the_examples_train_together(folder: Path, ray_address: str) -> None:
    """One run with all three: the parts of the pages' recipes, and the last page's overrides."""
    env = yaml.safe_load((folder / "extend_env.yaml").read_text())
    policy = yaml.safe_load((folder / "extend_policy.yaml").read_text())
    recipe = {**policy, "env": env["env"], "defaults": ["base/embodied", "algo/ppo", "_self_"]}
    (folder / "own.yaml").write_text(yaml.safe_dump(recipe))
    for name in ("extend_env", "extend_policy"):
        assert "valid" in rlinf(folder, ray_address, "check", f"{name}.yaml")
    short = ["runner.max_epochs=2", "runner.eval_episodes=20"]
    rlinf(folder, ray_address, "train", "own.yaml", *overrides_of("extend_algorithm"), *short)
    logs = find_run(folder / "logs" / "waves_ppo")
    summary = json.loads((logs / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["env_steps"] == 2 * 16 * 50
    line = json.loads((logs / "metrics.jsonl").read_text().splitlines()[0])
    assert line["train/critic/value_loss"] > 0 and line["env/return"] < 0


@pytest.mark.timeout(180)
def test_the_learner_of_a_page_trains_without_an_edit_of_actor_or_runner(
    folder: Path, ray_address: str
) -> None:
    short = ["runner.max_epochs=2", "~env.eval", "env.train.total_num_envs=4"]
    short += ["env.train.id=Pendulum-v1", "env.train.max_steps_per_rollout_epoch=20"]
    short += ["actor.global_batch_size=40", "runner.logger.experiment_name=own_learner"]
    learner = overrides_of("extend_learner")
    rlinf(folder, ray_address, "train", "gymnasium_ppo_mlp", *learner, *short)
    logs = find_run(folder / "logs" / "own_learner")
    lines = [json.loads(line) for line in (logs / "metrics.jsonl").read_text().splitlines()]
    assert all(line["rollout/imitated"] == 0.5 for line in lines if "env/total_steps" in line)
    assert lines[0]["train/actor/updates"] > 0 and "train/actor/surprise" in lines[0]
