"""Engine and actor agree in a real job; when one of them is tampered with, the part is named."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf.runners.agreement import PolicyDisagreement
from rlinf.workers.rollout.generation_worker import GenerationWorker
from tests.e2e_tests.reasoning.jobs import SHORT, metrics_of

OVERRIDES = [
    *SHORT,
    "runner.max_steps=3",
    "runner.save_interval=-1",
    "runner.agreement.interval=2",
    "runner.agreement.tolerance=1e-4",
    "cluster.component_placement={actor:0-1,rollout:2-3,reward:0}",
    "actor.stream_groups=2",
]


class TamperedRollout(GenerationWorker):
    """Generates, on rank 1, with something else than it should."""

    _with = ""

    async def tamper(self, part: str) -> None:
        self._with = part if self._rank == 1 else ""

    async def sync_model_from_actor(self) -> int:
        version = await super().sync_model_from_actor()
        if self._with == "weights":
            self.engine.model.model.layers[1].mlp.up_proj.weight.data[0] += 1.0
        return version

    async def _hand_out(self, channel: Any) -> None:
        await super()._hand_out(_Changing(channel) if self._with == "inputs" else channel)


class _Changing:
    """A channel that changes what is put into it."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def put(self, group: Any, **kwargs: Any) -> None:
        tokens = group.samples[0].response_ids
        tokens[0] = (tokens[0] + 1) % 10
        await self._channel.put(group, **kwargs)


@pytest.mark.timeout(180)
def test_a_real_job_agrees_and_what_was_tampered_with_is_named(runners, tmp_path):
    workers = {"rollout": (TamperedRollout, ())}
    runner = runners.runner(tmp_path, "arithmetic_grpo", OVERRIDES, workers)
    runner._supervise()
    runner._supervise = lambda: None
    before = runner.actor.weights().wait()[0]
    told = {}
    for part in ("weights", "inputs"):
        runner.rollout.tamper(part).wait()
        with pytest.raises(PolicyDisagreement) as caught:
            runner.train_step()
        assert caught.value.parts == (part,), str(caught.value)
        told[part] = str(caught.value)
        # The same step once more, with other prompts.
        runner._requested = 0
    named = "RolloutGroup:1 acted with another 'model.layers.1.mlp.up_proj.weight'"
    assert named in told["weights"]
    assert "'response'" in told["inputs"] and "seen by RolloutGroup:1" in told["inputs"]
    # The run stops before it learns anything.
    after = runner.actor.weights().wait()[0]
    assert all((after[name] == before[name]).all() for name in before)

    runner.rollout.tamper("").wait()
    runner.run()
    steps = {line["step"]: line for line in metrics_of(runner)}
    for step, looked_at in ((1, True), (2, False), (3, True)):
        assert ("train/agreement/logprob_max" in steps[step]) == looked_at
    for step in (1, 3):
        assert steps[step]["train/agreement/compared"] == 1.0
        for name in ("logprob_max", "logprob_mean"):
            assert 0 <= steps[step][f"train/agreement/{name}"] < 1e-4
