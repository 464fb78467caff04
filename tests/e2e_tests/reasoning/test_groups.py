"""Old and reference log-probabilities and values from groups of their own: the same run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.e2e_tests.reasoning.jobs import SHORT, make_runner, metrics_of

RECIPE = [
    *SHORT,
    "runner.max_steps=3",
    "algorithm.adv_type=gae",
    "algorithm.n_minibatches=2",
    "algorithm.kl_beta=0.05",
    "algorithm.critic_warmup_steps=2",
    "+critic={use_critic_model:true,model:${actor.model},optim:{lr:1e-3,adam_eps:1e-3}}",
    # Where gradients are noise, Adam makes steps of noise.
    "actor.optim.adam_eps=1e-3",
]
ALONE = ["cluster.component_placement={actor:0,rollout:0,reward:0}"]
GROUPS = [
    "cluster.component_placement={actor:0,rollout:0,reward:0,inference:3-4,reference:5,critic:6}",
]


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if not k.startswith("time/") and "per_second" not in k}
        for line in lines
    ]


@pytest.mark.timeout(240)
def test_groups_of_their_own_make_the_same_run_and_resume_exactly(runners, tmp_path):
    alone = make_runner(runners, tmp_path / "alone", *RECIPE, *ALONE)
    alone.run()
    expected = alone.actor.weights().wait()[0]

    whole = make_runner(runners, tmp_path / "whole", *RECIPE, *GROUPS)
    start = whole.actor.weights().wait()[0]
    whole.run()
    own = whole.actor.weights().wait()[0]
    moved = max(float((own[name] - start[name]).abs().max()) for name in own)
    apart = max(float((own[name] - expected[name]).abs().max()) for name in own)
    assert moved > 1e-3 and apart < 1e-5, (moved, apart)
    for one, other in zip(metrics_of(whole), metrics_of(alone), strict=True):
        assert one["rollout/score"] == other["rollout/score"]
        assert one["train/critic/updates"] == 2
        # The policy waits for the critic in the first step.
        trained = {"train/actor/kl_ref", "train/actor/grad_norm"} if one["step"] > 1 else set()
        assert trained <= one.keys() and trained <= other.keys()
        for name in {"train/critic/value_loss", *trained}:
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6), name
        assert {"time/inference/inference", "time/critic/values"} <= one.keys()

    checkpoint = whole.folder / "checkpoints" / "global_step_2"
    resume = f"runner.resume_dir={checkpoint}"
    resumed = make_runner(runners, tmp_path / "resumed", *RECIPE, *GROUPS, resume)
    assert resumed.global_step == 2
    resumed.run()
    found = resumed.actor.weights().wait()[0]
    assert all(torch.equal(found[name], own[name]) for name in own)
    assert comparable(metrics_of(resumed)) == comparable(metrics_of(whole)[-1:])
