"""An agent that searches: trained, and evaluated with its tool, without it, and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.agent_eval_runner import AgentEvalRunner
from rlinf.scheduler import HybridComponentPlacement
from tests.e2e_tests.reasoning.jobs import Reward
from tests.e2e_tests.reasoning.test_agents import CONFIGS, Agents, agents  # noqa: F401

SHORT = [
    "runner.max_steps=2",
    "runner.val_check_interval=-1",
    "runner.eval_at_start=true",
    "actor.supervised.steps=80",
    "actor.supervised.batch_size=64",
    "data.rollout_batch_size=8",
    "data.people=100",
    "data.val_size=40",
    "data.careless=0.0",
    "algorithm.group_size=4",
]


def evaluate(cluster: Any, folder: Path, *overrides: str) -> AgentEvalRunner:
    """Evaluate with workers of its own, which end with it."""
    names = [f"rollout.group_name=R {folder.name}", f"++reward.group_name=W {folder.name}"]
    chosen = ["runner.task_type=reasoning_eval", *overrides, *names]
    chosen.append(f"runner.logger.log_path={folder}")
    cfg = validate_cfg(build_config("searchr1_small", overrides=chosen, config_path=CONFIGS))
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {
        role: worker.create_group(cfg).launch(
            cluster, placement.get_strategy(role), name=cfg[role].group_name
        )
        for role, worker in (("rollout", Agents), ("reward", Reward))
    }
    runner = AgentEvalRunner(cfg, **groups)
    runner.init_workers()
    runner.run()
    for group in groups.values():
        group._close()
    return runner


def told(evaluation: dict[str, float]) -> dict[str, float]:
    """What an evaluation found, but for how long it took."""
    return {name: value for name, value in evaluation.items() if not name.endswith("/seconds")}


@pytest.mark.timeout(300)
def test_an_agent_searches_and_knows_nothing_without(agents, cluster, tmp_path, capsys):  # noqa: F811
    runner = agents.runner(tmp_path / "trained", "searchr1_small", SHORT)
    facts = runner.run()
    found, before = facts["evaluation"], facts["initial_evaluation"]
    assert "with tools switched off: pass@1" in capsys.readouterr().out
    for numbers in (found, before):
        assert {"eval/pass@1_no_tools", "eval/tool_errors"} <= set(numbers)
        assert 1.0 <= numbers["eval/tool_calls"] <= 3.0 and numbers["eval/prompts"] == 40
        # People that training never sees are found by those who search, and by no others.
        assert numbers["eval/pass@1"] > 0.3 and numbers["eval/pass@1_no_tools"] < 0.1
        tasks = numbers["eval/one_hop/pass@1"] + numbers["eval/two_hop/pass@1"]
        assert tasks / 2 == pytest.approx(numbers["eval/pass@1"])
    episodes = [json.loads(line) for line in (runner.folder / "samples.jsonl").open()]
    said = [t["text"] for e in episodes for t in e["turns"] if t["role"] == "tool"]
    assert any(" of " in text and " is " in text for text in said)

    # As `rlinf eval RUN` does it: with the actor.
    (checkpoint,) = (runner.folder / "checkpoints").glob("global_step_*")
    only = ["runner.only_eval=true", f"runner.resume_dir={checkpoint}"]
    again = agents.runner(tmp_path / "again", "searchr1_small", [*SHORT, *only])
    facts = again.run()
    assert facts["status"] == "evaluated" and told(facts["evaluation"]) == told(found)

    # And without one.
    data = [each for each in SHORT if each.startswith("data.")]
    alone = evaluate(cluster, tmp_path / "alone", f"+runner.ckpt_path={checkpoint}", *data)
    assert told(alone.summary.facts["evaluation"]) == told(found)
    answers = [json.loads(line) for line in (alone.folder / "samples.jsonl").open()]
    assert len(answers) == 40 and all(answer["turns"] for answer in answers)
