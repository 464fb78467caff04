"""Small valid configs to start from, and registries that forget what a test adds."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.config import ConfigError, SupportedModel, checks, plugins, validate_cfg
from rlinf.config.tracked import reset_reads
from rlinf.envs import registry

EMBODIED = {
    "cluster": {
        "num_nodes": 1,
        "num_gpus_per_node": 8,
        "component_placement": {"actor": "0-3", "env": "0-1", "rollout": "2-3"},
    },
    "runner": {"task_type": "embodied", "max_steps": 10},
    "algorithm": {"adv_type": "gae", "loss_type": "actor_critic", "update_epoch": 10},
    "env": {
        "train": {"env_type": "metaworld", "total_num_envs": 16, "max_episode_steps": 100},
        "eval": {"env_type": "metaworld", "total_num_envs": 4},
    },
    "rollout": {"pipeline_stage_num": 1},
    "actor": {
        "global_batch_size": 400,
        "micro_batch_size": 50,
        "model": {"model_type": "mlp_policy", "add_value_head": True},
    },
}

REASONING = {
    "cluster": {"num_gpus_per_node": 4, "component_placement": {"actor,rollout,reward": "0-3"}},
    "runner": {"task_type": "reasoning", "max_epochs": 1, "seq_length": 512},
    "algorithm": {
        "adv_type": "grpo",
        "loss_type": "actor",
        "group_size": 8,
        "n_minibatches": 4,
        "sampling_params": {"max_new_tokens": 256},
    },
    "data": {
        "max_prompt_length": 128,
        "rollout_batch_size": 32,
        "train_data_paths": ["train.jsonl"],
    },
    "rollout": {},
    "actor": {"micro_batch_size": 4, "model": {"model_type": "qwen3", "model_path": "m"}},
    "reward": {"reward_type": "math"},
}

WORKERS = {"runner": {"task_type": "workers"}, "example": {"numbers": [1, 2]}}


@pytest.fixture
def embodied():
    """A valid embodied config."""
    return copy.deepcopy(EMBODIED)


@pytest.fixture
def reasoning():
    """A valid reasoning config."""
    return copy.deepcopy(REASONING)


@pytest.fixture
def workers():
    """A valid config of an example without RL."""
    return copy.deepcopy(WORKERS)


@pytest.fixture(scope="session")
def change():
    """Sets dotted keys of a plain config; the value `...` deletes."""

    def apply(config, changes):
        for path, value in changes.items():
            *parents, last = path.split(".")
            node = config
            for key in parents:
                node = node.setdefault(key, {})
            if value is ...:
                del node[last]
            else:
                node[last] = value
        return config

    return apply


@pytest.fixture(scope="session")
def complaint():
    """Returns the message that a bad config gives, free of jargon."""

    def message(config):
        with pytest.raises(ConfigError) as caught:
            validate_cfg(config)
        text = str(caught.value)
        for jargon in ("pydantic", "ValidationError", "type=", "http", "extra_forbidden"):
            assert jargon not in text
        return text

    return message


@pytest.fixture
def run_python(tmp_path):
    """Runs Python in a fresh process and returns what it prints."""

    def run(*arguments):
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch):
    """Undoes registrations and forgets reads after every test."""
    for kind in plugins.KINDS:
        for name in plugins.known_names(kind):
            plugins.get_schema(kind, name)
    monkeypatch.delenv(plugins.EXT_VARIABLE, raising=False)
    for name in ("_schemas", "_modules"):
        content = {kind: dict(names) for kind, names in getattr(plugins, name).items()}
        monkeypatch.setattr(plugins, name, content)
    monkeypatch.setattr(plugins, "_replaced", set(plugins._replaced))
    monkeypatch.setattr(plugins, "_extensions", set())
    monkeypatch.setattr(plugins, "_config_extensions", {})
    monkeypatch.setattr(SupportedModel, "_known", dict(SupportedModel._known))
    for place, name in (
        (registry, "_targets"),
        (registry, "_own_keys"),
        (registry.SupportedEnvType, "_members"),
    ):
        monkeypatch.setattr(place, name, dict(getattr(place, name)))
    monkeypatch.setattr(checks, "_checks", list(checks._checks))
    reset_reads()
