"""A policy inside of the env processes does what one in processes of its own does."""

from __future__ import annotations

import json

import pytest
import torch

from tests.e2e_tests.embodied.test_embodied import SHORT

ALIKE = "cluster.component_placement={actor:0,rollout:0-1,env:0-1}"
TWO_STAGES = ["rollout.pipeline_stage_num=2", "actor.model.num_action_chunks=2"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("more", [[], TWO_STAGES], ids=["one_stage", "two_stages_of_chunks"])
def test_the_numbers_are_the_same_bit_for_bit(runners, tmp_path, more):
    found = {}
    for inside in (True, False):
        overrides = [*SHORT, ALIKE, *more, f"rollout.in_env_process={inside}"]
        runner = runners.runner(tmp_path / str(inside), "metaworld_ppo_mlp", overrides)
        assert (runner.env is runner.rollout) == inside
        runner.run()
        text = (runner.folder / "metrics.jsonl").read_text()
        lines = [
            {k: v for k, v in json.loads(line).items() if "time" not in k and "second" not in k}
            for line in text.splitlines()
        ]
        found[inside] = lines, runner.actor.weights().wait()[0]
    assert len(found[True][0]) >= 2 and found[True][0] == found[False][0]
    for name, tensor in found[True][1].items():
        assert torch.equal(tensor, found[False][1][name]), name


@pytest.mark.timeout(240)
def test_a_run_goes_on_with_its_policy_elsewhere(runners, tmp_path):
    """A checkpoint of either kind is one of the other: all steps come to the same numbers."""
    whole = runners.runner(tmp_path / "whole", "metaworld_ppo_mlp", [*SHORT, ALIKE])
    whole.run()
    first = [*SHORT, ALIKE, "runner.max_epochs=1", "runner.save_interval=1"]
    begun = runners.runner(tmp_path / "begun", "metaworld_ppo_mlp", first)
    begun.run()
    resumed = [*SHORT, ALIKE, "rollout.in_env_process=false"]
    resumed += [f"runner.resume_dir={begun.folder}/checkpoints/global_step_1"]
    rest = runners.runner(tmp_path / "rest", "metaworld_ppo_mlp", resumed)
    rest.run()
    expected, weights = (runner.actor.weights().wait()[0] for runner in (whole, rest))
    for name, tensor in expected.items():
        assert torch.equal(tensor, weights[name]), name
