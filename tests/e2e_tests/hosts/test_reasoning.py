"""A language model whose engine is on another host: weights go there, sequences come back."""

from __future__ import annotations

import json

import pytest

from tests.e2e_tests.reasoning.jobs import SHORT

RECIPE = "arithmetic_grpo"


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
        hosts.train(RECIPE, *SHORT, "runner.max_steps=3", *overrides, f"runner.run_dir={run}")
        assert json.loads(hosts.read(f"{run}/summary.json"))["status"] == "finished"
        assert hosts.files(run)["samples.jsonl"] > 0
        found[name] = [
            {k: v for k, v in line.items() if k.startswith(("rollout/", "train/")) or k == "step"}
            for line in hosts.metrics(run)
        ]
    assert len(found["one"]) >= 3 and found["two"] == found["one"]
