"""A whole chain with a policy that reads its instruction: collect, clone, then GRPO."""

from __future__ import annotations

import json

import pytest

from rlinf.cli import main

TINY = [
    "actor.model.hf_config={hidden_size:16,intermediate_size:16,num_hidden_layers:1,num_attention_heads:2}",
    "actor.model.num_action_chunks=4",
    "env.eval.total_num_envs=4",
    "env.eval.max_episode_steps=8",
    "env.eval.video_cfg.save_video=false",
    "runner.eval_episodes=4",
    "runner.val_check_interval=-1",
    "runner.progress=off",
    "runner.logger.logger_backends=[jsonl]",
]


@pytest.mark.timeout(300)
def test_a_policy_of_tokens_is_cloned_and_then_learns_from_success(runners, tmp_path) -> None:
    demos = tmp_path / "demos"
    words = ["collect.episodes=2", f"collect.save_dir={demos}", "runner.progress=off"]
    assert main(["collect", "metaworld_sft_oft", *words, "env.train.max_episode_steps=12"]) == 0
    data = [f"data.train_data_paths=[{demos}]", "runner.max_steps=2", "actor.global_batch_size=8"]
    cloned = runners.runner(
        tmp_path / "sft", "metaworld_sft_oft", [*TINY, *data, "runner.local_update_steps=8"]
    )
    summary = cloned.run()
    assert summary["status"] == "finished"
    lines = [
        json.loads(line) for line in (cloned.folder / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["train/actor/loss"] for line in lines if "train/actor/loss" in line]
    assert losses[-1] < losses[0]

    learned = runners.runner(
        tmp_path / "grpo",
        "metaworld_grpo_oft",
        [
            *TINY,
            f"runner.ckpt_path={cloned.folder}",
            "runner.max_epochs=2",
            "runner.agreement.interval=1",
            "runner.agreement.tolerance=1e-4",
            "algorithm.group_size=4",
            "algorithm.filter_rewards=false",
            # So short an episode is never solved; MetaWorld's own reward differs within groups.
            "env.train.reward=dense",
            "env.train.total_num_envs=8",
            "env.train.max_episode_steps=8",
            "actor.global_batch_size=16",
        ],
    )
    assert learned.run()["status"] == "finished"
    lines = [
        json.loads(line) for line in (learned.folder / "metrics.jsonl").read_text().splitlines()
    ]
    gaps = [
        line["train/agreement/logprob_max"]
        for line in lines
        if "train/agreement/logprob_max" in line
    ]
    assert gaps and max(gaps) <= 1e-4
