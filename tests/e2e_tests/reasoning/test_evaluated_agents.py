"""`rlinf eval` of what teams and live traffic have trained: the run is found, played, and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e_tests.command import rlinf

QUICK = ["runner.max_steps=1", "runner.val_check_interval=-1", "runner.eval_at_start=false"]
SMALL = [
    "runner.progress=off",
    "actor.supervised.steps=20",
    "actor.supervised.batch_size=16",
    "actor.model.hf_config.hidden_size=32",
    "actor.model.hf_config.intermediate_size=64",
    "actor.model.hf_config.num_hidden_layers=1",
    "data.rollout_batch_size=4",
    "data.val_size=10",
]


def trained_and_evaluated(folder: Path, address: str, recipe: str, *overrides: str) -> Any:
    """Train a recipe for a step, evaluate the run; return what it said and its folder."""
    rlinf(folder, address, "train", recipe, *QUICK, *SMALL, *overrides, seconds=280)
    said = rlinf(folder, address, "eval", f"logs/{recipe}", seconds=280)
    (evaluated,) = (folder / "logs" / recipe / "latest").glob("eval_*")
    return said, evaluated


@pytest.mark.timeout(600)
def test_a_team(tmp_path: Path, ray_address: str) -> None:
    said, evaluated = trained_and_evaluated(
        tmp_path, ray_address, "wideseek_small", "algorithm.group_size=4", "data.max_items=3"
    )
    assert "evaluated pass@1" in said and "10 prompts" in said
    summary = json.loads((evaluated / "summary.json").read_text())
    assert summary["status"] == "evaluated" and summary["recipe"] == "wideseek_small"
    found = summary["evaluation"]
    assert found["eval/prompts"] == 10 and 0 <= found["eval/pass@1"] <= 1
    assert found["eval/tool_errors"] <= found["eval/tool_calls"]
    # The team is there, whatever it has learnt in a step.
    assert found["eval/workers"] >= 0
    assert found["eval/total_tokens"] >= found["eval/context_tokens"] > 0
    episodes = [json.loads(line) for line in (evaluated / "samples.jsonl").open()]
    assert len(episodes) == 10 and not any(episode["learnt"] for episode in episodes)


@pytest.mark.timeout(600)
def test_what_live_traffic_has_trained(tmp_path: Path, ray_address: str) -> None:
    """No client is needed: it is asked what it is validated by."""
    said, evaluated = trained_and_evaluated(
        tmp_path,
        ray_address,
        "coding_online",
        "data.depth=1",
        "rollout_server.simulated_users=2",
    )
    assert "evaluated pass@1" in said
    summary = json.loads((evaluated / "summary.json").read_text())
    assert summary["status"] == "evaluated"
    assert summary["evaluation"]["eval/prompts"] == 10
    assert not (evaluated / "endpoint.json").exists()
    assert not (evaluated.parent / "endpoint.json").exists()
