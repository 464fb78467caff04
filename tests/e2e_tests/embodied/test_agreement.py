"""Rollout and actor agree in a real job; when one of them is tampered with, the part is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from rlinf.data.embodied_messages import POLICY_TRAJECTORY
from rlinf.runners.agreement import PolicyDisagreement
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker

OVERRIDES = [
    "cluster.component_placement={actor:0-1,rollout:0-1,env:0-1}",
    "rollout.pipeline_stage_num=2",
    "env.train.id=Pendulum-v1",
    "env.train.max_steps_per_rollout_epoch=12",
    "env.train.rollout_epoch=2",
    "~env.eval",
    "runner.max_epochs=3",
    "runner.agreement.interval=2",
    "runner.agreement.tolerance=1e-5",
    "actor.global_batch_size=96",
    "algorithm.update_epoch=1",
    # Actions that depend on the state from the beginning.
    "actor.model.orthogonal_init=false",
]


class TamperedRollout(MultiStepRolloutWorker):
    """Acts, on rank 1, with something else than it should."""

    _with = ""

    def tamper(self, part: str) -> None:
        self._with = part if self._rank == 1 else ""
        self.policy.to(torch.float32)

    def generate(self, number: int = 0) -> None:
        policy = self.policy
        if self._with == "weights":
            policy.policy_head.head.weight.data[0, 3] += 0.5
        if self._with == "normaliser":
            policy.normalizer.shift += 0.3
        if self._with == "dtype":
            policy.to(torch.bfloat16)
        predict = policy.predict_action_batch
        if self._with == "computation":
            policy.predict_action_batch = lambda *args, **kwargs: other(predict, *args, **kwargs)
        super().generate(number)
        if self._with == "computation":
            del policy.predict_action_batch

    def send_to(self, group: str, channel: Any, data: Any, **kwargs: Any) -> Any:
        if self._with == "inputs" and kwargs["tag"] == POLICY_TRAJECTORY:
            data.forward_inputs["states"][0, 1] += 1.0
        return super().send_to(group, channel, data, **kwargs)


def other(predict: Any, *args: Any, **kwargs: Any) -> Any:
    actions, result = predict(*args, **kwargs | {"compute_logprobs": True})
    return actions, {**result, "prev_logprobs": result["prev_logprobs"] + 0.25}


@pytest.mark.timeout(180)
def test_a_real_job_agrees_and_what_was_tampered_with_is_named(runners, tmp_path):
    tampered = {"rollout": (TamperedRollout, ())}
    runner = runners.runner(tmp_path, "gymnasium_ppo_mlp", OVERRIDES, tampered)
    told = {}
    for part in ("weights", "normaliser", "inputs", "dtype", "computation"):
        runner.rollout.tamper(part).wait()
        runner.update_rollout_weights()
        runner.generate_rollouts()
        with pytest.raises(PolicyDisagreement) as caught:
            runner.agreement.check(0)
        assert caught.value.parts == (part,), str(caught.value)
        told[part] = str(caught.value)
    assert "RolloutGroup:1 acted with another 'policy_head.head.weight'" in told["weights"]
    assert "RolloutGroup:1 acted with another 'normalizer.shift'" in told["normaliser"]
    # Rank 1 has the second half of the envs of each stage, and this is the second of them.
    assert "'states'" in told["inputs"] and "seen by RolloutGroup:1" in told["inputs"]
    assert "env 9 in chunk step 0 of epoch 0" in told["inputs"]
    assert "RolloutGroup:1 computes in bfloat16, the learner in float32" in told["dtype"]

    runner.rollout.tamper("").wait()
    runner.run()
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    steps = {line["step"]: line for line in map(json.loads, lines)}
    for step, looked_at in ((1, True), (2, False), (3, True)):
        assert ("train/agreement/logprob_max" in steps[step]) == looked_at
    for step in (1, 3):
        assert steps[step]["train/agreement/compared"] == 1.0
        for name in ("logprob_max", "logprob_mean", "value_max", "value_mean"):
            assert 0 <= steps[step][f"train/agreement/{name}"] < 1e-5
