"""Language models for real: a small one learns to add, and a resumed run is the undisturbed one."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.utils.runs.summary import PROMISED
from tests.e2e_tests.reasoning.jobs import SHORT, make_runner, metrics_of


@pytest.mark.timeout(300)
def test_a_small_model_gets_better_at_problems_it_has_never_seen(runners, tmp_path):
    runner = make_runner(
        runners,
        tmp_path,
        "runner.max_steps=12",
        "runner.val_check_interval=12",
        "actor.supervised.steps=120",
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
    assert [line["step"] for line in lines] == list(range(1, 13))
    samples = (runner.folder / "samples.jsonl").read_text().splitlines()
    assert (
        len(samples) == 12 * 4 and {"prompt", "response", "score"} <= json.loads(samples[0]).keys()
    )


def of_the_clock(name: str) -> bool:
    return name.startswith("time/") or "per_second" in name or "seconds" in name


@pytest.mark.timeout(240)
def test_a_resumed_run_is_as_if_nothing_had_happened(runners, tmp_path):
    """By DAPO, where prompts are drawn again, and more groups come than are needed."""
    # Some answers have to be right.
    overrides = [*SHORT, "runner.max_steps=4", "actor.supervised.steps=80"]
    overrides.append("actor.supervised.batch_size=64")
    make = partial(make_runner, runners, recipe="arithmetic_dapo")
    whole = make(tmp_path / "a", *overrides)
    whole.run()
    expected = whole.actor.weights().wait()[0]
    half = make(tmp_path / "b", *overrides)
    half.max_steps = 2
    half.run()
    resumed = make(tmp_path / "b", *overrides, "runner.resume_dir=auto")
    assert resumed.global_step == 2
    resumed.run()
    found = resumed.actor.weights().wait()[0]
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    ours, theirs = (
        [{k: v for k, v in line.items() if not of_the_clock(k)} for line in metrics_of(runner)]
        for runner in (resumed, whole)
    )
    assert ours == theirs
    steps = [line for line in theirs if "rollout/groups_drawn" in line]
    assert any(line["rollout/groups_drawn"] > 8 for line in steps), "prompts were drawn again"
    for line in steps:
        trained = line["rollout/groups_with_signal"] - line["rollout/groups_dropped"]
        assert trained <= 8 and line["train/actor/policy_age"] == 0


@pytest.mark.timeout(180)
def test_evaluations_change_nothing_in_training(runners, tmp_path, monkeypatch):
    """Also not between two weight updates, when the engine has older weights than the actor."""
    found, evaluated = [], []
    evaluate = ReasoningRunner.evaluate
    monkeypatch.setattr(
        ReasoningRunner,
        "evaluate",
        lambda runner: evaluated.append(runner.global_step) or evaluate(runner),
    )
    for name, interval in (("never", -1), ("always", 1)):
        runner = make_runner(
            runners,
            tmp_path / name,
            *SHORT,
            "runner.save_interval=-1",
            "runner.max_steps=3",
            "runner.weight_sync_interval=3",
            f"runner.val_check_interval={interval}",
            f"runner.eval_at_start={interval > 0}",
        )
        summary = runner.run()
        ages = [
            line["train/actor/policy_age"]
            for line in metrics_of(runner)
            if "train/actor/policy_age" in line
        ]
        assert ages == [0, 1, 2], "samples are of the weights of the first step"
        found.append(runner.actor.weights().wait()[0])
    never, always = found
    assert all(torch.equal(never[name], always[name]) for name in never)
    assert evaluated == [3, 0, 1, 2, 3], "no policy is evaluated twice"
    known = {name for name in PROMISED if summary[name] is not None}
    assert known == set(PROMISED) - {"env_steps_per_second"}, "what a summary promises"
    assert summary["initial_evaluation"].keys() == summary["evaluation"].keys()
    assert summary["evaluation_step"] == 3 and metrics_of(runner)[0]["step"] == 0
    assert summary["samples_per_second"] * summary["training_seconds"] == pytest.approx(96, 0.05)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "overrides",
    [
        [
            "algorithm.max_policy_age=1",
            "cluster.component_placement={actor:0,rollout:1-2,reward:0}",
        ],
        ["cluster.component_placement={actor:0-1,rollout:0,reward:0}", "actor.stream_groups=2"],
        [
            "rollout.enable_offload=true",
            "algorithm.max_policy_age=1",
            "runner.val_check_interval=2",
        ],
        ["rollout.enable_offload=true", "runner.weight_sync_interval=2"],
    ],
    ids=["asynchronous", "streaming", "asleep and asynchronous", "asleep between updates"],
)
def test_other_ways_to_train(runners, tmp_path, overrides):
    runner = make_runner(runners, tmp_path, *SHORT, "runner.max_steps=3", *overrides)
    summary = runner.run()
    assert summary["status"] == "finished" and summary["global_step"] == 3
    lines = [line for line in metrics_of(runner) if "rollout/samples" in line]
    assert len(lines) == 3 and all(line["rollout/samples"] >= 32 for line in lines)
