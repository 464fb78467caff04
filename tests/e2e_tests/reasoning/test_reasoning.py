"""Language models for real: a small one learns to add, and a resumed run is the undisturbed one."""

from __future__ import annotations

import json

import pytest
import torch

from tests.e2e_tests.reasoning.jobs import SHORT, make_runner, metrics_of


@pytest.mark.timeout(300)
def test_a_small_model_gets_better_at_problems_it_has_never_seen(troupe, tmp_path):
    runner = make_runner(
        troupe,
        tmp_path,
        "runner.max_steps=24",
        "runner.val_check_interval=24",
        "actor.supervised.steps=150",
    )
    runner._supervise()
    before = runner.evaluate()["eval/pass@1"]
    runner._supervise = lambda: None
    summary = runner.run()
    after = summary["evaluation"]
    assert summary["status"] == "finished" and after["eval/prompts"] == 200
    assert after["eval/pass@1"] > before + 0.1, (before, after)
    assert after["eval/pass@1_low"] <= after["eval/pass@1"] <= after["eval/pass@1_high"]
    lines = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert [line["step"] for line in lines] == list(range(1, 25))
    samples = (runner.folder / "samples.jsonl").read_text().splitlines()
    assert (
        len(samples) == 24 * 4 and {"prompt", "response", "score"} <= json.loads(samples[0]).keys()
    )


def of_the_clock(name: str) -> bool:
    return name.startswith("time/") or "per_second" in name or "seconds" in name


@pytest.mark.timeout(180)
def test_a_resumed_run_is_as_if_nothing_had_happened(troupe, tmp_path):
    whole = make_runner(troupe, tmp_path / "a", *SHORT, "runner.max_steps=4")
    whole.run()
    expected = whole.actor.weights().wait()[0]
    half = make_runner(troupe, tmp_path / "b", *SHORT, "runner.max_steps=4")
    half.max_steps = 2
    half.run()
    resumed = make_runner(
        troupe, tmp_path / "b", *SHORT, "runner.max_steps=4", "runner.resume_dir=auto"
    )
    assert resumed.global_step == 2
    resumed.run()
    found = resumed.actor.weights().wait()[0]
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    ours, theirs = (
        [{k: v for k, v in line.items() if not of_the_clock(k)} for line in metrics_of(runner)]
        for runner in (resumed, whole)
    )
    assert ours == theirs


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "overrides",
    [
        [
            "algorithm.max_policy_age=1",
            "cluster.component_placement={actor:0,rollout:1-2,reward:0}",
        ],
        ["cluster.component_placement={actor:0-1,rollout:0,reward:0}", "actor.stream_groups=2"],
    ],
    ids=["asynchronous", "streaming"],
)
def test_other_ways_to_train(troupe, tmp_path, overrides):
    runner = make_runner(troupe, tmp_path, *SHORT, "runner.max_steps=3", *overrides)
    summary = runner.run()
    assert summary["status"] == "finished" and summary["global_step"] == 3
    lines = metrics_of(runner)
    assert all(line["rollout/samples"] >= 32 for line in lines[:3])
