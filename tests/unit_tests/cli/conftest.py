from __future__ import annotations

from pathlib import Path

import pytest

EMBODIED = """\
runner:
  task_type: embodied
  max_steps: 10
cluster:
  num_nodes: 1
  component_placement:
    actor: 0-7
    env: 0-3
    rollout: 4-7
algorithm:
  adv_type: gae
  loss_type: actor_critic
env:
  train: {env_type: gymnasium, id: CartPole-v1, total_num_envs: 16, max_episode_steps: 64}
  eval: {env_type: gymnasium, id: CartPole-v1, total_num_envs: 16, max_episode_steps: 64}
rollout:
  model: {model_type: mlp_policy}
actor:
  global_batch_size: 256
  micro_batch_size: 16
  model: {model_type: mlp_policy, add_value_head: true}
"""


@pytest.fixture
def embodied(tmp_path: Path) -> Path:
    """A valid embodied config."""
    path = tmp_path / "tiny_ppo.yaml"
    path.write_text(EMBODIED)
    return path
