"""Packages that a config needs are told all at once, before anything starts."""

from __future__ import annotations

import pickle
import re
import sys
import types
from pathlib import Path
from typing import get_args

import pytest

from rlinf.config import ExtrasMissing, Need, missing_extras, plugins, register_need, to_plain
from rlinf.config import requirements as module
from rlinf.config import validate_cfg as validate
from rlinf.config.requirements import install_command, registered_needs, require_extras
from rlinf.config.schema.rollout import ReasoningRolloutConfig
from rlinf.config.schema.runner import Backend
from rlinf.utils.extras import install_hint

ROOT = Path(__file__).resolve().parents[3]

NOTHING = {
    "env.train.env_type": ("navigation",),
    "actor.model.model_type": (
        *("mlp_policy", "cnn_policy", "flow_policy", "cma"),
        *("mlp_reward_model", "cnn_reward_model"),
    ),
    "data.type": (
        *("files", "arithmetic", "calculations", "facts", "one_liners", "programs"),
        "wide_questions",
    ),
    "reward.reward_type": ("arithmetic", "code", "code_completion", "searchr1", "vqa"),
    "rollout.rollout_backend": ("hf", "vllm_server", "sglang_server"),
    "runner.logger.logger_backends": ("jsonl",),
}
"""What needs nothing but the core, by key."""


@pytest.fixture
def without(monkeypatch):
    """Hide modules from this Python."""

    def hide(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


def missing(config) -> list:
    return missing_extras(to_plain(validate(config)))


def test_all_are_told_with_one_command(embodied, without):
    assert missing(embodied) == []
    without("metaworld", "mujoco", "imageio", "wandb", "swanlab")
    embodied["env"]["eval"]["video_cfg"] = {"save_video": True}
    embodied["runner"]["logger"] = {"logger_backends": ["jsonl", "wandb", "swanlab"]}
    found = missing(embodied)
    assert list(map(str, found)) == [
        'env.train.env_type = "metaworld": metaworld, mujoco',
        "env.eval.video_cfg.save_video = true: imageio",
        'runner.logger.logger_backends = "wandb": wandb',
        'runner.logger.logger_backends = "swanlab": swanlab',
    ]
    assert install_command(found) == install_hint("embodied", "tracking")
    with pytest.raises(ExtrasMissing) as raised:
        require_extras(to_plain(validate(embodied)))
    assert "metaworld, mujoco" in str(raised.value) and "nothing was started" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_extras_and_other_packages_are_one_command(reasoning, without):
    without("vllm", "transformers", "math_verify", "pyarrow", "peft")
    reasoning["rollout"]["rollout_backend"] = "vllm"
    reasoning["data"]["train_data_paths"] = ["a.jsonl", "b.parquet"]
    reasoning["actor"]["model"]["is_lora"] = True
    found = missing(reasoning)
    absent = {name for item in found for name in item.modules}
    assert absent == {"vllm", "transformers", "math_verify", "pyarrow", "peft"}
    assert install_command(found) == install_hint("reasoning", packages=["vllm"])


def test_workers_elsewhere_may_have_what_the_driver_lacks(embodied, without):
    without("metaworld", "wandb")
    embodied["runner"]["logger"] = {"logger_backends": ["wandb"]}
    embodied["cluster"]["num_nodes"] = 2
    embodied["cluster"]["component_placement"] = {"actor": "0-3", "env": "0-1", "rollout": "2-3"}
    assert [item.modules for item in missing(embodied)] == [("wandb",)]
    embodied["cluster"]["num_nodes"] = 1
    assert len(missing(embodied)) == 2
    other = {"node_ranks": "0", "python_interpreter_path": "/opt/python"}
    groups = [{"label": "sim", "node_ranks": "0", "env_configs": [other]}]
    embodied["cluster"]["node_groups"] = groups
    assert [item.modules for item in missing(embodied)] == [("wandb",)]


def test_a_plug_in_can_say_what_it_needs(embodied, monkeypatch):
    monkeypatch.setattr(module, "_needs", list(module._needs))
    need = Need("env.*.env_type", ("metaworld",), ("mazelib",), packages=("maze-lib",))
    register_need(need)
    register_need(need)
    (found,) = missing(embodied)
    assert found.modules == ("mazelib",) and install_command([found]) == "pip install 'maze-lib'"
    monkeypatch.setitem(sys.modules, "mazelib", types.ModuleType("mazelib"))
    assert missing(embodied) == []


def _names() -> dict[str, list[str]]:
    backends = ReasoningRolloutConfig.model_fields["rollout_backend"].annotation
    return {
        "env.train.env_type": plugins.known_names("env"),
        "actor.model.model_type": plugins.known_names("model"),
        "data.type": plugins.known_names("dataset"),
        "reward.reward_type": plugins.known_names("reward"),
        "rollout.rollout_backend": list(get_args(backends)),
        "runner.logger.logger_backends": list(get_args(Backend)),
    }


def test_the_table_knows_all_that_comes_with_the_package():
    builtin = {
        name for names in plugins.MODULES.values() for item in names.values() for name in item
    }
    for path, names in _names().items():
        for name in names:
            if "type" in path and name not in builtin:
                continue  # A test has added it.
            asked = any(need.is_of(path, name) for need in registered_needs())
            assert asked != (name in NOTHING[path]), f"{path}={name}"


def test_extras_bring_what_is_needed():
    text = (ROOT / "pyproject.toml").read_text()
    for need in registered_needs():
        if not need.extra:
            assert need.packages
            continue
        brought = re.search(rf"^{need.extra} = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE).group(1)
        for name in need.modules:
            assert re.search(rf'"{name.replace("_", "-")}[<>=]', brought), name
