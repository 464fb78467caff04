"""Whole jobs of a flow policy: supervised training, then GRPO from it; both resume exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf.cli import main
from tests.e2e_tests.command import rlinf
from tests.e2e_tests.embodied.test_offline import tensors

SHORT = [
    "runner.val_check_interval=2",
    "runner.eval_episodes=4",
    "runner.deterministic=true",
    "runner.save_interval=1",
    "runner.logger.logger_backends=[jsonl]",
    "env.eval.total_num_envs=4",
    "env.eval.video_cfg.save_video=false",
    "actor.model.hidden_sizes=[64,64]",
]
GRPO = [
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=24",
    "env.eval.max_episode_steps=24",
    "algorithm.group_size=4",
    "algorithm.update_epoch=2",
    "algorithm.filter_rewards=false",
    "actor.global_batch_size=12",
    # An untrained policy presses no button: the dense reward has something to compare.
    "env.train.reward=dense",
    "runner.agreement.interval=1",
    "runner.max_epochs=3",
]


def metrics_of(runner) -> list[dict[str, float]]:
    return [json.loads(line) for line in (runner.folder / "metrics.jsonl").read_text().splitlines()]


def resumed(runners, folder: Path, recipe: str, overrides: list[str], stop: int):
    """A run that ended early, and the one that goes on with it."""
    first = runners.runner(folder, recipe, overrides)
    first.max_steps = stop
    first.run()
    resume = [f"runner.run_dir={first.folder}", "runner.resume_dir=auto"]
    second = runners.runner(folder, recipe, [*overrides, *resume])
    second.run()
    return second


def same_weights(one, other, step: int) -> bool:
    ours, theirs = tensors(one.folder, step), tensors(other.folder, step)
    return all(ours[name].equal(theirs[name]) for name in ours)


PLANS = [
    "actor.model.num_action_chunks=4",
    "actor.model.action_horizon=8",
    "env.eval.max_episode_steps=24",
]


def test_evaluations_go_on_with_their_plans(runners, tmp_path) -> None:
    """Two runs that differ in real-time chunking alone learn alike and act differently."""
    demos = tmp_path / "demos"
    words = ["collect.episodes=4", f"collect.save_dir={demos}", "runner.progress=off"]
    assert main(["collect", "metaworld_sft_flow", *words]) == 0
    sft = [
        *SHORT,
        *PLANS,
        f"data.train_data_paths=[{demos}]",
        "data.held_out_ratio=0.25",
        "runner.max_steps=2",
        "runner.local_update_steps=20",
        "actor.global_batch_size=64",
    ]
    runs, returns = [], []
    for name, further in (("free", []), ("rtc", ["+actor.model.rtc={delay: 2}"])):
        run = runners.runner(tmp_path / name, "metaworld_sft_flow", [*sft, *further])
        run.run()
        runs.append(run)
        returns.append([m["eval/return"] for m in metrics_of(run) if "eval/return" in m])
    assert same_weights(*runs, 2)
    assert len(returns[0]) == len(returns[1]) == 1 and returns[0] != returns[1]


AHEAD = [
    *GRPO,
    *PLANS,
    "env.train.max_episode_steps=24",
    "runner.ckpt_path=null",
    "runner.max_epochs=2",
]


def test_rollouts_plan_ahead(runners, tmp_path) -> None:
    """GRPO learns from plans that are made while the last ones are carried out, and resumes."""
    delayed = [*SHORT, *AHEAD, "+actor.model.rtc={delay: 2, max_guidance: 0, rollouts: delayed}"]
    whole = runners.runner(tmp_path / "whole", "metaworld_grpo_flow", delayed)
    assert whole.run()["status"] == "finished"
    found = [m for m in metrics_of(whole) if "train/agreement/logprob_max" in m]
    assert len(found) == 2 and max(m["train/agreement/logprob_max"] for m in found) < 1e-3
    other = resumed(runners, tmp_path / "half", "metaworld_grpo_flow", delayed, stop=1)
    assert same_weights(whole, other, 2)
    # Who has a delay in evaluations alone learns otherwise.
    anew = [*SHORT, *AHEAD, "+actor.model.rtc={delay: 2}"]
    free = runners.runner(tmp_path / "free", "metaworld_grpo_flow", anew)
    free.run()
    assert not same_weights(whole, free, 2)


def test_ppo_plans_ahead_with_a_policy_in_a_process_of_its_own(runners, tmp_path) -> None:
    """Episodes end within a rollout and begin anew, in two stages that take turns."""
    words = [
        *SHORT,
        *PLANS,
        "env.train.total_num_envs=8",
        "env.train.max_episode_steps=14",
        "env.train.max_steps_per_rollout_epoch=32",
        "env.train.auto_reset=true",
        "env.train.reward=dense",
        "actor.global_batch_size=32",
        "rollout.in_env_process=false",
        "rollout.pipeline_stage_num=2",
        "algorithm.update_epoch=1",
        "runner.agreement.interval=1",
        "runner.ckpt_path=null",
        "runner.max_epochs=2",
        "+actor.model.rtc={delay: 3, max_guidance: 0, rollouts: delayed}",
    ]
    run = runners.runner(tmp_path / "ppo", "metaworld_ppo_flow", words)
    assert run.run()["status"] == "finished"
    found = [m for m in metrics_of(run) if "train/agreement/logprob_max" in m]
    assert len(found) == 2 and max(m["train/agreement/logprob_max"] for m in found) < 1e-3
    assert max(m["train/agreement/value_max"] for m in found) < 1e-3
    assert any("eval/return" in m for m in metrics_of(run))


NFT = [
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=24",
    "env.eval.max_episode_steps=24",
    "env.train.reward=dense",
    "algorithm.group_size=4",
    "algorithm.filter_rewards=false",
    "actor.global_batch_size=12",
    "actor.model.noise_method=flow_ode",
    "actor.model.joint_logprob=false",
    "runner.ckpt_path=null",
    "runner.max_epochs=3",
    "algorithm.nft.tau=0.5",
]


def test_nft_learns_from_plans_without_likelihood(runners, tmp_path) -> None:
    whole = runners.runner(tmp_path / "whole", "metaworld_nft_flow", [*SHORT, *NFT])
    assert whole.run()["status"] == "finished"
    changes = [m for m in metrics_of(whole) if "train/actor/velocity_change" in m]
    assert len(changes) == 3 and all(m["train/actor/velocity_change"] > 0 for m in changes)
    assert all(0.2 < m["train/actor/optimality"] < 0.8 for m in changes)
    # A copy that follows slowly acts, and is resumed.
    assert all(m["train/actor/acting_share"] == 0.5 for m in changes)
    kept = tensors(whole.folder, 3)
    velocities = [name for name in kept if name.startswith("model.velocity.")]
    assert any(not kept[n].equal(kept[n.replace("model.", "reference.", 1)]) for n in velocities)
    other = resumed(runners, tmp_path / "half", "metaworld_nft_flow", [*SHORT, *NFT], stop=1)
    assert same_weights(whole, other, 3)


DSRL = [
    "env.train.total_num_envs=4",
    "env.train.max_episode_steps=24",
    "env.train.max_steps_per_rollout_epoch=24",
    "env.train.reward=dense",
    "env.eval.max_episode_steps=24",
    "algorithm.update_epoch=8",
    "algorithm.replay_buffer.min_buffer_size=12",
    "actor.global_batch_size=32",
    "actor.model.steering_hidden_sizes=[32]",
    "runner.ckpt_path=null",
    "runner.max_epochs=4",
]


def test_dsrl_steers_a_flow_that_stays(runners, tmp_path) -> None:
    whole = runners.runner(tmp_path / "whole", "metaworld_dsrl_flow", [*SHORT, *DSRL])
    assert whole.run()["status"] == "finished"
    first, last = tensors(whole.folder, 1), tensors(whole.folder, 4)
    own = [name for name in first if name.startswith("model.")]
    changed = {name.split(".")[1] for name in own if not first[name].equal(last[name])}
    assert changed == {"steering", "q_head"}
    other = resumed(runners, tmp_path / "half", "metaworld_dsrl_flow", [*SHORT, *DSRL], stop=2)
    assert same_weights(whole, other, 4)


@pytest.mark.timeout(300)
def test_supervised_then_grpo(runners, tmp_path, ray_address) -> None:
    demos = tmp_path / "demos"
    words = ["collect.episodes=4", f"collect.save_dir={demos}", "runner.progress=off"]
    assert main(["collect", "metaworld_sft_flow", *words]) == 0
    sft = [
        *SHORT,
        f"data.train_data_paths=[{demos}]",
        "data.held_out_ratio=0.25",
        "runner.max_steps=4",
        "runner.local_update_steps=30",
        "actor.global_batch_size=64",
        "actor.optim.lr=3e-3",
    ]
    whole = runners.runner(tmp_path / "sft", "metaworld_sft_flow", sft)
    summary = whole.run()
    assert summary["demo_episodes"] == 3 and summary["gradient_updates"] == 120
    found = metrics_of(whole)
    losses = [line["train/actor/loss"] for line in found if "train/actor/loss" in line]
    held_out = [line["eval/held_out_loss"] for line in found if "eval/held_out_loss" in line]
    assert losses[-1] < 0.9 * losses[0] and held_out[-1] < held_out[0]
    other = resumed(runners, tmp_path / "sft_half", "metaworld_sft_flow", sft, stop=2)
    assert same_weights(whole, other, 4)

    # Whoever only evaluates does not need what was learned from.
    demos.rename(tmp_path / "elsewhere")
    said = rlinf(tmp_path, ray_address, "eval", str(whole.folder), "runner.progress=off")
    assert "over 4 episodes" in said

    grpo = [*SHORT, *GRPO, f"runner.ckpt_path={whole.folder}"]
    tuned = runners.runner(tmp_path / "grpo", "metaworld_grpo_flow", grpo)
    assert tuned.run()["status"] == "finished"
    gaps = [line for line in metrics_of(tuned) if "train/agreement/logprob_max" in line]
    assert len(gaps) == 3 and max(line["train/agreement/logprob_max"] for line in gaps) < 1e-3
    assert same_weights(
        tuned, resumed(runners, tmp_path / "g_half", "metaworld_grpo_flow", grpo, stop=1), 3
    )
