"""What a valid config becomes."""

import copy
import pickle

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ReadonlyConfigError

from rlinf.config import ConfigError, TrackedConfig, to_plain, validate_cfg


def test_defaults_are_filled_in(embodied):
    cfg = validate_cfg(embodied)
    assert isinstance(cfg, TrackedConfig)
    assert cfg.algorithm.gamma == 0.99
    assert cfg.cluster.timeouts.nodes == 300
    assert cfg.cluster.timeouts.call is None
    assert cfg.weight_syncer.bucket.bucket_size is None
    assert "critic" not in cfg
    assert cfg.env.train.task == "button-press-v3"
    assert cfg.actor.model.hidden_sizes == [128, 128]


def test_the_argument_is_not_changed(embodied):
    given = OmegaConf.create(embodied)
    OmegaConf.set_struct(given, True)
    before = copy.deepcopy(given)
    validate_cfg(given)
    assert given == before
    assert OmegaConf.to_container(given) == embodied
    plain = copy.deepcopy(embodied)
    validate_cfg(plain)
    assert plain == embodied


def test_the_result_is_read_only_and_has_no_silent_none(embodied):
    cfg = validate_cfg(embodied)
    with pytest.raises(ReadonlyConfigError):
        cfg.actor.global_batch_size = 1
    with pytest.raises(ReadonlyConfigError):
        cfg.actor.model.hidden_sizes.append(3)
    with pytest.raises(ConfigAttributeError):
        _ = cfg.actor.global_batch_sise
    assert cfg.actor.get("no_such_key", 7) == 7
    assert "no_such_key" not in cfg.actor


def test_interpolations_are_resolved(embodied):
    embodied["rollout"]["model"] = {"model_path": "${actor.model.model_path}"}
    embodied["actor"]["model"]["model_path"] = "weights"
    embodied["actor"]["micro_batch_size"] = "${divide:${actor.global_batch_size},8}"
    embodied["env"]["eval"] = "${env.train}"
    cfg = validate_cfg(OmegaConf.create(embodied))
    assert cfg.rollout.model.model_path == "weights"
    assert cfg.actor.micro_batch_size == 50
    assert cfg.env.eval.total_num_envs == 16


def test_text_that_looks_like_an_interpolation_survives(workers):
    workers["example"] = {"template": r"\${name}", "kept": "$x"}
    cfg = validate_cfg(OmegaConf.create(workers))
    assert cfg.example.template == "${name}"
    assert pickle.loads(pickle.dumps(cfg)).example.template == "${name}"
    assert to_plain(cfg)["example"] == {"template": "${name}", "kept": "$x"}


@pytest.mark.parametrize(
    ("given", "expected"), [("1e-4", 1e-4), (1, 1.0), (3e-5, 3e-5), ("0.5", 0.5)]
)
def test_ways_to_write_a_number(embodied, given, expected):
    embodied["actor"]["optim"] = {"lr": given}
    lr = validate_cfg(embodied).actor.optim.lr
    assert lr == expected
    assert type(lr) is float


def test_a_million_may_be_written_1e6(embodied):
    embodied["runner"]["max_steps"] = 1e6
    steps = validate_cfg(embodied).runner.max_steps
    assert steps == 1000000
    assert type(steps) is int


def test_empty_sections_mean_defaults(embodied):
    embodied["actor"]["optim"] = None
    embodied["weight_syncer"] = None
    embodied["critic"] = None
    cfg = validate_cfg(embodied)
    assert cfg.actor.optim.lr == 1e-4
    assert cfg.weight_syncer.verify is True
    assert "critic" not in cfg


def test_keys_of_hydra_are_dropped(embodied):
    embodied["hydra"] = {"run": {"dir": "???"}}
    embodied["defaults"] = ["_self_"]
    cfg = validate_cfg(embodied)
    assert "hydra" not in cfg
    assert "defaults" not in cfg


def test_the_placement_in_the_older_seed(embodied):
    embodied["cluster"] = OmegaConf.to_container(
        OmegaConf.create(
            """
            num_nodes: 1
            num_gpus_per_node: 8
            component_placement:
              actor: 0-7
              env: 0-3
              rollout: 4-7
            """
        )
    )
    assert validate_cfg(embodied).cluster.component_placement.actor == "0-7"
    del embodied["cluster"]["num_gpus_per_node"]
    assert validate_cfg(embodied, accelerators_per_node=0).cluster.num_gpus_per_node is None


TUTORIAL_KEYS = {
    "rollout.model.model_path": "/m",
    "rollout.model_dir": "/m",
    "actor.model.model_path": "/m",
    "actor.checkpoint_load_path": "/c",
    "actor.checkpoint_save_path": "/s",
    "actor.enable_offload": True,
    "actor.fsdp_config.gradient_checkpointing": True,
    "rollout.enable_offload": True,
    "runner.logger.log_path": "/logs",
    "runner.logger.logger_backends": ["tensorboard", "wandb", "swanlab"],
    "runner.max_epochs": 5,
    "runner.max_steps": 5,
    "runner.save_interval": 5,
    "runner.resume_dir": "/logs/checkpoints/global_step_5",
}
TUTORIAL_KEYS_BY_TASK = {
    "embodied": {
        "runner.val_check_interval": 5,
        "actor.global_batch_size": 400,
        "actor.micro_batch_size": 100,
        "rollout.model.model_type": "mlp_policy",
        "env.train.group_size": 1,
    },
    "reasoning": {
        "actor.tokenizer.tokenizer_model": "/t",
        "rollout.gpu_memory_utilization": 0.5,
        "rollout.model.model_type": "qwen3",
        "actor.global_batch_size": 64,
        "actor.micro_batch_size": 16,
    },
}


@pytest.mark.parametrize("task", TUTORIAL_KEYS_BY_TASK)
def test_every_key_that_the_tutorials_name(request, task):
    keys = TUTORIAL_KEYS | TUTORIAL_KEYS_BY_TASK[task]
    cfg = OmegaConf.create(request.getfixturevalue(task))
    for key, value in keys.items():
        OmegaConf.update(cfg, key, value)
    checked = validate_cfg(cfg)
    for key, value in keys.items():
        assert OmegaConf.select(checked, key) == value


def test_reasoning_and_workers(reasoning, workers):
    assert validate_cfg(reasoning).actor.global_batch_size is None
    assert validate_cfg(reasoning).critic is None
    assert validate_cfg(workers).example.numbers == [1, 2]
    assert validate_cfg(workers).cluster.num_nodes == 1


def test_node_groups_pass_through(workers):
    workers["cluster"] = {
        "num_nodes": 2,
        "component_placement": {"arm": {"node_group": "robots", "placement": 0}},
        "node_groups": [
            {
                "label": "robots",
                "node_ranks": "1",
                "hardware": {"type": "Franka", "configs": [{"node_rank": 1, "robot_ip": "x"}]},
                "env_configs": [
                    {"node_ranks": 1, "env_vars": [{"A": "1"}]},
                ],
            }
        ],
    }
    group = validate_cfg(workers).cluster.node_groups[0]
    assert group.hardware.configs[0].robot_ip == "x"
    assert group.ignore_hardware is False


def test_checking_twice_changes_nothing(embodied):
    once = validate_cfg(embodied)
    assert validate_cfg(once) == once


def test_the_error_survives_the_way_to_another_process(embodied):
    embodied["actor"]["micro_batch_size"] = "x"
    with pytest.raises(ValueError) as caught:
        validate_cfg(embodied)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, ConfigError)
    assert str(error) == str(caught.value)
    assert error.problems[0].path == "actor.micro_batch_size"
    assert error.problems[0].value == "x"
