"""Who acts: what `rollout.in_env_process` comes to."""

from __future__ import annotations

import pytest

from rlinf.config import ConfigError, build_config, validate_cfg
from rlinf.config.acting import acting_group, eval_batch_size, policy_age, resolve_acting

PLACED = "cluster.component_placement"


def config(*overrides: str):
    return validate_cfg(build_config("metaworld_ppo_mlp", overrides=list(overrides)))


@pytest.mark.parametrize(
    "overrides, inside",
    [
        ([], True),
        ([f"{PLACED}={{actor:0,rollout:0,env:0-1}}"], False),
        (["rollout.pipeline_stage_num=2"], False),
        (["rollout.pipeline_stage_num=2", "rollout.in_env_process=true"], True),
        (["rollout.in_env_process=false"], False),
    ],
)
def test_auto_is_decided_by_placement_and_stages(overrides, inside):
    cfg = config(*overrides)
    resolved = resolve_acting(cfg)
    assert resolved.rollout.in_env_process is inside
    assert acting_group(resolved) == ("EnvGroup" if inside else "RolloutGroup")
    if "rollout.in_env_process=true" not in overrides:
        # Programs that launch a rollout group need not know of it.
        assert acting_group(cfg) == "RolloutGroup"


def test_a_policy_in_env_processes_has_their_placement():
    with pytest.raises(ConfigError, match="rollout has another placement(.|\n)*env,rollout: 0-1"):
        config(f"{PLACED}={{actor:0,rollout:0,env:0-1}}", "rollout.in_env_process=true")


ALONE = ["env.train=null", "env.eval.task=reach-v3", "env.eval.tasks=null", "runner.only_eval=true"]
ENVS = ["env.train.total_num_envs=64", "env.eval.total_num_envs=40"]


@pytest.mark.parametrize(
    "overrides, processes, on_cpu, size",
    [
        (ENVS, 1, True, 8),
        (ENVS, 4, False, 10),
        (["env.train.total_num_envs=16", *ENVS[1:]], 2, False, 8),
        (["env.train.total_num_envs=16", *ENVS[1:], "rollout.pipeline_stage_num=2"], 2, False, 4),
        ([*ALONE, *ENVS[1:]], 2, False, 20),
        ([*ENVS, "rollout.eval_batch_size=12"], 2, False, 12),
        ([*ENVS, "rollout.eval_batch_size=12"], 2, True, 12),
    ],
)
def test_evaluations_act_on_as_many_observations_as_training(overrides, processes, on_cpu, size):
    cfg = config(*overrides)
    assert eval_batch_size(cfg, processes, on_cpu=on_cpu) == size


def test_how_far_rollouts_may_be_ahead_has_two_names():
    assert policy_age(config()) == 0
    assert policy_age(config("algorithm.max_policy_age=2")) == 2
    assert policy_age(config("++algorithm.staleness_threshold=3")) == 3
    offline = build_config("metaworld_bc_mlp", overrides=["data.train_data_paths=[/tmp]"])
    assert policy_age(validate_cfg(offline)) == 0


@pytest.mark.parametrize(
    "override, words",
    [
        ("runner.weight_sync_interval=2", "weights are sent every 2 updates(.|\n)*to 1"),
        ("rollout.enable_offload=true", "rollout.enable_offload = true\n  must be false(.|\n)*age"),
        ("env.train.enable_offload=true", "env.train.enable_offload = true\n  must be false"),
        ("actor.enable_offload=true", "actor.enable_offload = true\n  must be false"),
    ],
)
def test_rollouts_ahead_have_new_weights_and_room(override, words):
    config(override)
    with pytest.raises(ConfigError, match=words):
        config("algorithm.max_policy_age=1", override)
