"""A language model whose engine is on another host: weights go there, sequences come back."""

from __future__ import annotations

import json

import pytest

RECIPE = "arithmetic_grpo"
SHORT = [
    "actor.supervised.steps=10",
    "actor.supervised.batch_size=16",
    "data.rollout_batch_size=8",
    "data.val_size=20",
    "algorithm.group_size=4",
    "runner.save_interval=2",
    "runner.val_check_interval=-1",
    "runner.max_steps=3",
]


def placed(actor: str, rollout: str, reward: str) -> str:
    return f"cluster.component_placement={{actor: {actor}, rollout: {rollout}, reward: {reward}}}"


@pytest.mark.timeout(600)
def test_a_run_over_two_hosts_is_the_run_on_one(hosts):
    """Whole weights or differences of them, here or there: the numbers are the same."""
    jobs = {
        "one": [placed("0", "0", "0")],
        "two": [placed("0", "1", "1"), "weight_syncer.type=patch"],
    }
    found = {}
    for name, overrides in jobs.items():
        run = f"/tmp/runs/reasoning-{name}"
        hosts.train(RECIPE, *SHORT, *overrides, f"runner.run_dir={run}")
        assert json.loads(hosts.read(f"{run}/summary.json"))["status"] == "finished"
        assert hosts.files(run)["samples.jsonl"] > 0
        found[name] = [
            {k: v for k, v in line.items() if k.startswith(("rollout/", "train/")) or k == "step"}
            for line in hosts.metrics(run)
        ]
    assert len(found["one"]) >= 3 and found["two"] == found["one"]
