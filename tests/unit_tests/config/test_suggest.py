"""A name that nobody knows: which one was meant, and how to add one's own."""

from __future__ import annotations

import pytest

from rlinf.algorithms.registry import get_adv_and_returns, policy_loss
from rlinf.algorithms.rewards import get_reward_class
from rlinf.config import SupportedEnvType, get_supported_model
from rlinf.data.datasets import dataset_registry
from rlinf.workers.actor.registry import learner_registry

UNKNOWN = {
    "env.train.env_type": "register_env",
    "actor.model.model_type": "register_model",
    "algorithm.adv_type": "register_advantage",
    "algorithm.loss_type": "register_policy_loss or register_learner",
}


@pytest.mark.parametrize(("path", "decorator"), UNKNOWN.items())
def test_a_config_with_an_unknown_name(embodied, complaint, path, decorator):
    *sections, key = path.split(".")
    node = embodied
    for name in sections:
        node = node[name]
    node[key] = "mine"
    said = complaint(embodied)
    assert (
        f"one of your own: {decorator} in a module that RLINF_EXT_MODULE or runner.ext_modules"
        in said
    )


def test_near_names_come_first(embodied, complaint):
    embodied["env"]["train"]["env_type"] = "metawrld"
    said = complaint(embodied)
    assert said.index("did you mean 'metaworld'?") < said.index("RLINF_EXT_MODULE")


@pytest.mark.parametrize(
    ("look_up", "decorator"),
    [
        (SupportedEnvType, "register_env"),
        (get_supported_model, "register_model"),
        (get_reward_class, "register_reward"),
        (get_adv_and_returns, "register_advantage"),
        (lambda name: policy_loss(loss_type=name), "register_policy_loss"),
        (learner_registry.lookup, "register_learner"),
        (dataset_registry.lookup, "register_dataset"),
    ],
)
def test_code_that_looks_an_unknown_name_up(monkeypatch, look_up, decorator):
    with pytest.raises(ValueError, match=f"{decorator}.* RLINF_EXT_MODULE .* names$"):
        look_up("mine")
    monkeypatch.setenv("RLINF_EXT_MODULE", "my_plugins")
    with pytest.raises(ValueError, match="RLINF_EXT_MODULE=my_plugins registers no such name"):
        look_up("mine")
