"""Deterministic runs have equal fingerprints, and a change is found where it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.utils.fingerprints import FILE, read_fingerprints

OVERRIDES = [
    "cluster.component_placement={actor:0-1,rollout:2,env:0-1}",
    "rollout.pipeline_stage_num=2",
    "env.train.id=Pendulum-v1",
    "env.train.max_steps_per_rollout_epoch=20",
    "~env.eval",
    "runner.deterministic=true",
    "runner.max_epochs=4",
    # One optimiser step for each step of the run.
    "actor.global_batch_size=null",
    "algorithm.update_epoch=1",
    "actor.optim.lr_warmup_steps=2",
]


def run(runners, tmp_path: Path, name: str, *overrides: str) -> Path:
    more = [*OVERRIDES, *overrides, f"runner.logger.experiment_name={name}"]
    runner = runners.runner(tmp_path, "gymnasium_ppo_mlp", more)
    runner.run()
    return runner.folder


@pytest.mark.timeout(180)
def test_two_ranks_and_two_stages_do_the_same_until_something_is_changed(runners, tmp_path, capsys):
    # Both rates rise in steps 1 and 2 and are at their height in step 3; then one of them falls.
    one = run(runners, tmp_path, "one")
    two = run(runners, tmp_path, "two", "actor.optim.lr_scheduler=linear")
    first, second = ((folder / FILE).read_text().splitlines() for folder in (one, two))
    assert first[:5] == second[:5] and first[5] != second[5]
    found = read_fingerprints(one)
    assert list(found.steps) == [0, 1, 2, 3, 4]
    assert found.facts["actor_ranks"] == len(found.steps[1]["batch"]) == 2
    assert len({record["weights"] for record in found.steps.values()}) == 5
    capsys.readouterr()
    assert main(["bisect", str(one), str(two)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("first difference: step 4, weights 'log_std' and ")
    assert "in optimiser step 1 of 1" in out and "equal: steps 0 to 3" in out
    assert "config: actor.optim.lr_scheduler is 'constant' in A, 'linear' in B" in out
    assert main(["bisect", str(one), str(one)]) == 0
    assert "equal in all steps that both have: 0 to 4" in capsys.readouterr().out
