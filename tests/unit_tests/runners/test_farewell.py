"""What a run suggests at its end is not what was just done."""

from __future__ import annotations

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.farewell import before_training, go_on_command, next_step, places
from tests.unit_tests.workers.actor.learning import make_cfg

FACTS = {"recipe": "mine", "checkpoint": "somewhere", "evaluation": {"eval/success_once": 0.9}}


@pytest.mark.parametrize(
    "task, other", [("button-press-v3", "reach-v3"), ("reach-v3", "button-press-v3")]
)
def test_another_task_is_another_one(tmp_path, task, other):
    cfg = make_cfg({"env.train.task": task})
    said = next_step(cfg, tmp_path, FACTS)
    assert said == f"next: another task: rlinf train mine env.train.task={other}"


@pytest.mark.parametrize(
    "recipe", ["metaworld_grpo_oft", "metaworld_ppo_mt10", "metaworld_rlpd_mlp"]
)
def test_a_run_that_is_bound_to_its_tasks_is_not_sent_to_another(tmp_path, recipe):
    said = next_step(validate_cfg(build_config(recipe)), tmp_path, FACTS)
    assert said == "next: another recipe, of those in rlinf train --list"


def test_a_run_that_has_learned_little_goes_on(tmp_path):
    cfg = make_cfg({"runner.max_steps": 30})
    poor = FACTS | {"evaluation": {"eval/success_once": 0.2}}
    assert next_step(cfg, tmp_path, poor) == (
        f"next: train it longer: rlinf train mine runner.run_dir={tmp_path} "
        "runner.resume_dir=auto runner.max_steps=60"
    )
    assert "longer" not in next_step(cfg, tmp_path, poor | {"checkpoint": None})
    # A resumed run of another length would be refused.
    falling = make_cfg({"runner.max_steps": 30, "actor.optim.lr_scheduler": "linear"})
    assert "longer" not in next_step(falling, tmp_path, poor)


def test_what_is_there_is_not_suggested(tmp_path):
    cfg = make_cfg({"runner.logger": {"logger_backends": ["jsonl"]}})
    assert places(cfg, tmp_path) == (
        f"everything is in {tmp_path}; one page of it: rlinf report {tmp_path}"
    )
    (tmp_path / "report.html").write_text("")
    (tmp_path / "samples.jsonl").write_text("")
    said = places(make_cfg({}), tmp_path)
    assert "one page of it" not in said and "report.html is older than this" in said
    assert "samples.jsonl" in said and "tensorboard --logdir" in said


def test_what_was_before_the_training():
    assert before_training({"initial_evaluation": None}) is None
    found = {"eval/success_once": 0.03, "eval/return": 12.0}
    assert before_training({"initial_evaluation": found}) == "before the training: success 3.0%"
    found = {"eval/return": 1234.56}
    assert before_training({"initial_evaluation": found}) == "before the training: return 1,235"


def test_what_a_run_was_started_with_is_part_of_going_on_with_it(tmp_path):
    facts = FACTS | {
        "overrides": ["runner.seed=3", "runner.run_dir=elsewhere", "a={b: [1, 2]}", "x.y=1"]
    }
    assert go_on_command(tmp_path, facts, {"x.y": 2}) == (
        f"rlinf train mine runner.seed=3 'a={{b: [1, 2]}}' runner.run_dir={tmp_path} "
        "runner.resume_dir=auto x.y=2"
    )
