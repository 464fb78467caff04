"""The recipes of `examples/reasoning`: each is valid, and short runs of them train."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.config import build_config, config_names, validate_cfg
from tests.e2e_tests.reasoning.jobs import CONFIGS, make_runner, metrics_of

SHORT = [
    "runner.max_steps=3",
    "runner.val_check_interval=-1",
    "data.rollout_batch_size=16",
]


@pytest.mark.parametrize("name", config_names(CONFIGS))
def test_a_recipe_is_valid(name: str) -> None:
    cfg = validate_cfg(build_config(name, config_path=CONFIGS))
    assert cfg.runner.logger.experiment_name == name, "runs of recipes go to folders of their own"


def test_recipes_of_one_task_differ_in_the_algorithm_alone() -> None:
    first = validate_cfg(build_config("arithmetic_grpo", config_path=CONFIGS))
    for kind in ("dapo", "reinpp", "ppo", "gspo", "cispo"):
        name = f"arithmetic_{kind}"
        other = validate_cfg(build_config(name, config_path=CONFIGS))
        assert other.actor == first.actor and other.reward == first.reward
        made = [cfg.data.rollout_batch_size * cfg.algorithm.group_size for cfg in (first, other)]
        assert made[0] == made[1], "all have as many responses per step"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "age", "expected"),
    [
        ("arithmetic_dapo", 1, "rollout/groups_dropped"),
        ("arithmetic_gspo", 0, "train/actor/mismatch_weight"),
        ("arithmetic_reinpp", 0, "train/actor/kl_ref"),
        ("arithmetic_ppo", 0, "train/critic/updates"),
    ],
)
def test_a_recipe_trains(runners, tmp_path: Path, name: str, age: int, expected: str) -> None:
    # With dynamic sampling, some answers have to be right.
    steps = 80 if name == "arithmetic_dapo" else 10
    more = [f"actor.supervised.steps={steps}", f"algorithm.max_policy_age={age}"]
    runner = make_runner(runners, tmp_path, *SHORT, *more, recipe=name)
    summary = runner.run()
    assert summary["status"] == "finished" and summary["global_step"] == 3
    lines = metrics_of(runner)
    assert len(lines) == 3 and all(expected in line for line in lines), sorted(lines[0])
