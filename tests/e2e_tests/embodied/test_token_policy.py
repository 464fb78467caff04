"""A whole chain with policies that read their instruction: collect, clone, then GRPO."""

from __future__ import annotations

import json
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlinf.cli import main
from rlinf.envs import get_env_cls
from rlinf.hybrid_engines.initial_weights import load_weights
from rlinf.models.registry import get_model
from rlinf.workers.env.describe_envs import describe_envs
from tests.long_tests import long_test

TINY_LLAMA = (
    "actor.model.hf_config={hidden_size:16,intermediate_size:16,num_hidden_layers:1,num_attention_heads:2}",
)
GROOT = (
    "actor.model.model_type=gr00t",
    "~actor.model.hf_config",
    "+actor.model.hf_config={vision:{hidden_size:16,intermediate_size:16,num_hidden_layers:1,num_attention_heads:1,image_size:28},"
    "text:{hidden_size:16,intermediate_size:16,num_hidden_layers:1,num_attention_heads:2,num_key_value_heads:1,head_dim:8},"
    "features:{num_layers:1,num_attention_heads:2,attention_head_dim:8},"
    "diffusion:{num_layers:2,num_attention_heads:2,attention_head_dim:8},"
    "hidden_size:16,future_tokens:2}",
    "actor.model.max_prompt_length=64",
)
"""GR00T in the place of the policy of a recipe."""
OPENPI = (
    "actor.model.model_type=openpi",
    "+actor.model.variant=pi05",
    "~actor.model.hf_config",
    "+actor.model.hf_config={vision:{hidden_size:16,intermediate_size:16,num_hidden_layers:1,num_attention_heads:1,image_size:16},"
    "text:{hidden_size:16,intermediate_size:16,num_hidden_layers:2,num_attention_heads:2,num_key_value_heads:1,head_dim:8},"
    "expert_hidden_size:16,expert_intermediate_size:16,max_state_dim:40,max_action_dim:4}",
    "actor.model.max_prompt_length=64",
)
"""pi0.5 in the place of the policy of a recipe: its prompt holds the state."""
OPENVLA = (*TINY_LLAMA, "actor.model.model_type=openvla")
"""Tokens one after the other."""
PART = "actor.model.action_horizon=6"
"""Only four actions of six are carried out."""
TINY = [
    "actor.model.num_action_chunks=4",
    "env.eval.total_num_envs=4",
    "env.eval.max_episode_steps=8",
    "env.eval.video_cfg.save_video=false",
    "runner.eval_episodes=4",
    "runner.val_check_interval=-1",
    "runner.progress=off",
    "runner.logger.logger_backends=[jsonl]",
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("oft", (*TINY_LLAMA, PART)),
        ("oft", OPENVLA),
        ("smolvla", ()),
        ("smolvla", GROOT),
        ("smolvla", OPENPI),
    ],
    ids=["openvla_oft", "openvla", "smolvla", "gr00t", "openpi"],
)
def test_a_policy_is_cloned_and_then_learns_from_success(runners, tmp_path, name, sizes) -> None:
    demos = tmp_path / "demos"
    words = ["collect.episodes=2", f"collect.save_dir={demos}", "runner.progress=off"]
    recipe = f"metaworld_sft_{name}"
    assert main(["collect", recipe, *words, "env.train.max_episode_steps=12"]) == 0
    data = [f"data.train_data_paths=[{demos}]", "runner.max_steps=2", "actor.global_batch_size=8"]
    cloned = runners.runner(
        tmp_path / "sft", recipe, [*TINY, *sizes, *data, "runner.local_update_steps=8"]
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
        f"metaworld_grpo_{name}",
        [
            *TINY,
            *sizes,
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


def success(runner: Any, **keys: Any) -> float:
    """Play 100 episodes of evaluations with the policy of a run; keys are of the env."""
    section = OmegaConf.to_container(runner.cfg.env.eval) | keys
    env = get_env_cls("metaworld")(section | {"video_cfg": {}}, 100)
    policy = get_model(runner.cfg.actor.model, describe_envs([], [env]))
    load_weights(policy, str(runner.folder))
    obs, solved = env.begin_episodes(range(100))[0], 0.0
    while env.has_work:
        actions, _ = policy.predict_action_batch(obs, mode="eval")
        obs_list, *_, infos = env.chunk_step(actions)
        obs = obs_list[-1]
        if "_episode" in infos[-1]:
            solved += float(infos[-1]["episode"]["success_once"][infos[-1]["_episode"]].sum())
    env.close()
    return solved / 100


@long_test
@pytest.mark.timeout(1200)
def test_the_policy_does_as_it_is_told(runners, tmp_path) -> None:
    demos = tmp_path / "demos"
    words = [f"collect.save_dir={demos}", "runner.progress=off"]
    assert main(["collect", "metaworld_sft_oft", *words]) == 0
    short = ["runner.val_check_interval=-1", "runner.eval_episodes=2", *TINY[-2:]]
    runner = runners.runner(
        tmp_path, "metaworld_sft_oft", [*short, f"data.train_data_paths=[{demos}]"]
    )
    runner.run()
    told = success(runner)
    assert told >= 0.2
    assert success(runner, swap_instructions=True) <= told / 2
