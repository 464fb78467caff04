"""Language models for real: a small one learns to add, and a resumed run is the undisturbed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.config import build_config, validate_cfg
from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.scheduler import Cluster, HybridComponentPlacement
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.reward.reward_worker import RewardWorker
from rlinf.workers.rollout.generation_worker import GenerationWorker

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "reasoning" / "config"


class InspectableActor(ReasoningActor):
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.engine.full_tensors()}


def make_runner(
    cluster: Cluster, folder: Path, *overrides: str, recipe: str = "arithmetic_grpo"
) -> ReasoningRunner:
    paths = [f"runner.logger.log_path={folder}", "runner.progress=off"]
    cfg = build_config(recipe, overrides=[*paths, *overrides], config_path=CONFIGS)
    cfg = validate_cfg(cfg)
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {
        role: cls.create_group(cfg).launch(
            cluster, placement.get_strategy(role), name=cfg[role].group_name
        )
        for role, cls in (
            ("rollout", GenerationWorker),
            ("reward", RewardWorker),
            ("actor", InspectableActor),
        )
    }
    runner = ReasoningRunner(cfg, **groups)
    runner.init_workers()
    return runner


def metrics_of(runner: ReasoningRunner) -> list[dict[str, Any]]:
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(300)
def test_a_small_model_gets_better_at_problems_it_has_never_seen(cluster, tmp_path):
    runner = make_runner(
        cluster,
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


SHORT = [
    "actor.supervised.steps=10",
    "actor.supervised.batch_size=16",
    "data.rollout_batch_size=8",
    "data.val_size=20",
    "algorithm.group_size=4",
    "runner.save_interval=2",
    "runner.val_check_interval=-1",
]


def of_the_clock(name: str) -> bool:
    return name.startswith("time/") or "per_second" in name or "seconds" in name


@pytest.mark.timeout(180)
def test_a_resumed_run_is_as_if_nothing_had_happened(cluster, tmp_path):
    whole = make_runner(cluster, tmp_path / "a", *SHORT, "runner.max_steps=4")
    whole.run()
    expected = whole.actor.weights().wait()[0]
    close(whole)
    half = make_runner(cluster, tmp_path / "b", *SHORT, "runner.max_steps=4")
    half.max_steps = 2
    half.run()
    close(half)
    resumed = make_runner(
        cluster, tmp_path / "b", *SHORT, "runner.max_steps=4", "runner.resume_dir=auto"
    )
    assert resumed.global_step == 2
    resumed.run()
    found = resumed.actor.weights().wait()[0]
    close(resumed)
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
            "cluster.component_placement={actor:0,rollout:1-2,reward:3}",
        ],
        [
            "algorithm.dynamic_sampling=true",
            # Enough for some answers to be right.
            "actor.supervised.steps=80",
            "actor.supervised.batch_size=64",
            "algorithm.max_num_gen_batches=4",
            "algorithm.loss_agg_func=token-mean",
            "algorithm.clip_ratio_high=0.28",
        ],
        ["cluster.component_placement={actor:0-1,rollout:2,reward:3}", "actor.stream_groups=2"],
    ],
    ids=["asynchronous", "dapo", "streaming"],
)
def test_other_ways_to_train(cluster, tmp_path, overrides):
    runner = make_runner(cluster, tmp_path, *SHORT, "runner.max_steps=3", *overrides)
    summary = runner.run()
    close(runner)
    assert summary["status"] == "finished" and summary["global_step"] == 3
    lines = metrics_of(runner)
    assert all(line["rollout/samples"] >= 32 for line in lines[:3])


def close(runner: ReasoningRunner) -> None:
    for group in (runner.actor, runner.rollout, runner.reward):
        group._close()
