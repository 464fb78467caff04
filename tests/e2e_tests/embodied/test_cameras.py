"""A job whose policy sees through two cameras of the simulator."""

from __future__ import annotations

import pytest
import torch

from rlinf.envs import can_render
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from tests.e2e_tests.embodied.test_token_policy import TINY, TINY_LLAMA
from tests.e2e_tests.embodied.workers import Env

TOWER = "{embed_dim:8,depth:2,num_heads:2,mlp_dim:8,patch_size:8,image_size:16}"
TWO = [
    *("env.train.image_size=16", "env.eval.image_size=16"),
    *("env.train.wrist_camera_name=gripperPOV", "env.eval.wrist_camera_name=gripperPOV"),
    "actor.model.num_images_in_input=2",
    f"actor.model.vision_towers=[{TOWER}]",
]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_second_camera_goes_from_the_simulator_to_the_learner(runners, tmp_path) -> None:
    able, reason = can_render()
    if not able:
        pytest.skip(reason)
    short = [
        *TINY,
        *TINY_LLAMA,
        *TWO,
        "runner.ckpt_path=null",
        "algorithm.group_size=2",
        "algorithm.filter_rewards=false",
        # One task is one OpenGL context less.
        "env.train.tasks=[door-lock-v3]",
        "env.eval.tasks=[door-lock-v3]",
        "env.train.reward=dense",
        "env.train.total_num_envs=4",
        "env.train.max_episode_steps=8",
        "actor.global_batch_size=8",
    ]
    # MuJoCo draws only if its back-end was chosen before it was first loaded.
    runner = runners.runner(tmp_path, "metaworld_grpo_oft_rgb", short, {"env": (Env, ())})
    runner.update_rollout_weights()
    runner.generate_rollouts()
    batch, acting = runner.actor.batch().wait()[0], runner.actor.weights().wait()[0]
    images = batch["images"]
    assert images.shape == (2, 4, 2, 16, 16, 3) and images.dtype == torch.uint8
    first, second = images.unbind(2)
    assert (first != second).any() and (second[0] != second[1]).any()

    spec = EnvSpec(obs_dim=4, action_dim=4, action_low=-1, action_high=1)
    policy = get_model(runner.cfg.actor.model, spec)
    policy.load_state_dict(acting, strict=False)
    inputs = {key: rows[0] for key, rows in batch.items() if key not in ("rewards", "logprobs")}
    blank = images[0].clone()
    blank[:, 1] = 0
    seeing, not_seeing = (
        policy(forward_inputs=inputs | {"images": pictures})["logprobs"]
        for pictures in (images[0], blank)
    )
    torch.testing.assert_close(seeing, batch["logprobs"][0], rtol=1e-4, atol=1e-4)
    assert float((seeing - not_seeing).detach().abs().max()) > 1e-3

    assert runner.learn()["train/actor/updates"] > 0
    learned = runner.actor.weights().wait()[0]
    towers = [name for name in acting if "vision_backbone" in name]
    assert any(not learned[name].equal(acting[name]) for name in towers)
