"""Evaluating without an actor: what a run has saved is worth what the run said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.hybrid_engines.export import export_checkpoint
from rlinf.runners.reasoning_eval_runner import ReasoningEvalRunner
from rlinf.scheduler import HybridComponentPlacement
from tests.e2e_tests.reasoning.jobs import CONFIGS, SHORT, Reward, Rollout, make_runner


def evaluate(cluster: Any, folder: Path, *overrides: str) -> ReasoningEvalRunner:
    """Evaluates with workers of its own, which end with it."""
    names = [f"rollout.group_name=R {folder.name}", f"++reward.group_name=W {folder.name}"]
    overrides = (*overrides, *names, f"runner.logger.log_path={folder}", "data.val_size=20")
    cfg = validate_cfg(build_config("arithmetic_eval", overrides=overrides, config_path=CONFIGS))
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {
        role: worker.create_group(cfg).launch(
            cluster, placement.get_strategy(role), name=cfg[role].group_name
        )
        for role, worker in (("rollout", Rollout), ("reward", Reward))
    }
    runner = ReasoningEvalRunner(cfg, **groups)
    runner.init_workers()
    runner.run()
    for group in groups.values():
        group._close()
    return runner


@pytest.mark.timeout(240)
def test_a_checkpoint_and_its_export_are_evaluated_without_an_actor(runners, cluster, tmp_path):
    trained = make_runner(
        runners,
        tmp_path / "trained",
        *SHORT,
        "runner.max_steps=2",
        "runner.val_check_interval=2",
        "actor.supervised.steps=120",
        "actor.supervised.batch_size=64",
    )
    expected = trained.run()["evaluation"]
    assert 0 < expected["eval/pass@1"] < 1 and expected["eval/prompts"] == 20
    run = trained.folder
    one = evaluate(cluster, tmp_path / "run", f"runner.ckpt_path={run}")
    assert one.summary.facts["status"] == "evaluated" and one.global_step == 2
    assert one.summary.facts["evaluation"] == expected
    lines = (one.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["eval/pass@1"] for line in lines] == [expected["eval/pass@1"]]
    answers = [json.loads(line) for line in (one.folder / "samples.jsonl").read_text().splitlines()]
    assert sum(answer["scores"][0] for answer in answers) / 20 == expected["eval/pass@1"]

    exported = export_checkpoint(run, "hf", tmp_path / "export")
    overrides = ["runner.ckpt_path=null", f"++rollout.model.model_path={exported}"]
    other = evaluate(cluster, tmp_path / "folder", *overrides)
    assert other.summary.facts["evaluation"] == expected
