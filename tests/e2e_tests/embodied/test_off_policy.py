"""Whole jobs that learn from a replay buffer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RECIPE = "gymnasium_sac_mlp"
SHORT = [
    "env.train.id=Pendulum-v1",
    "env.train.max_steps_per_rollout_epoch=6",
    "++env.train.max_episode_steps=8",
    "~env.eval",
    "runner.logger.logger_backends=[jsonl]",
    "runner.save_interval=3",
    "runner.deterministic=true",
    "algorithm.update_epoch=6",
    "++algorithm.replay_buffer={cache_size:120,min_buffer_size:30}",
    "actor.global_batch_size=32",
    "actor.model.hidden_sizes=[16]",
    "++actor.model.num_action_chunks=2",
    "++runner.agreement.interval=1",
]
PLACES = {
    "one actor, policy in the env processes": "{actor:0,rollout:0-1,env:0-1}",
    "two actors, two stages": "{actor:0-1,rollout:2,env:0-1}",
}


def overrides_of(place: str, *more: str) -> list[str]:
    stages = ["rollout.pipeline_stage_num=2", "++env.train.rollout_epoch=2"]
    own = stages if "stages" in place else []
    return [*SHORT, f"cluster.component_placement={PLACES[place]}", *own, *more]


def metrics(folder: Path) -> list[dict[str, float]]:
    """All that does not depend on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if "time/" not in k and "per_second" not in k}
        for line in lines
    ]


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    place = folder / "checkpoints" / f"global_step_{step}" / "actor"
    out: dict[str, torch.Tensor] = {}
    for file in sorted(place.rglob("*.safetensors")):
        name = str(file.relative_to(place))
        out |= {f"{name}/{key}": tensor for key, tensor in load_file(file).items()}
    return out


@pytest.mark.timeout(240)
@pytest.mark.parametrize("place", PLACES)
def test_a_resumed_run_is_the_one_that_was_not_interrupted(runners, tmp_path, capsys, place):
    whole = runners.runner(tmp_path / "whole", RECIPE, overrides_of(place, "runner.max_epochs=6"))
    summary = whole.run()
    rows = 8 * 3 * (2 if "stages" in place else 1)
    last = metrics(whole.folder)[-1]
    assert last["train/replay_buffer/added_samples"] == 6 * rows
    assert summary["replay_size"] == min(6 * rows, 120)
    assert summary["gradient_updates"] == last["train/gradient_updates"] > 0
    assert summary["gradient_updates"] % 6 == 0
    # What acted is what the actor has: differences of log-probabilities are those of rounding.
    assert last["train/agreement/logprob_max"] < 1e-3

    first = runners.runner(tmp_path / "cut", RECIPE, overrides_of(place, "runner.max_epochs=3"))
    first.run()
    more = overrides_of(place, "runner.max_epochs=6", "runner.resume_dir=auto")
    capsys.readouterr()
    resumed = runners.runner(tmp_path / "cut", RECIPE, [*more, f"runner.run_dir={first.folder}"])
    said = capsys.readouterr().out
    assert "resuming after step 3" in said and "not restored" not in said
    resumed.run()
    assert metrics(resumed.folder) == metrics(whole.folder)
    one, other = tensors(whole.folder, 6), tensors(resumed.folder, 6)
    assert one.keys() == other.keys() and any("replay" in name for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.timeout(240)
def test_it_learns_to_hold_the_pendulum(runners, tmp_path):
    overrides = [
        "env.train.id=Pendulum-v1",
        "runner.max_epochs=90",
        "runner.eval_episodes=20",
        "runner.logger.logger_backends=[jsonl]",
    ]
    summary = runners.runner(tmp_path, RECIPE, overrides).run()
    # Random actions give -1200, the best policies about -150.
    assert summary["evaluation"]["eval/return"] > -400
