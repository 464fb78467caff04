"""Activations that are computed again instead of kept."""

import copy

import pytest
import torch
from torch import nn

from rlinf.models.embodiment.base_policy import BasePolicy
from tests.unit_tests.workers.actor.learning import (
    distance,
    learn,
    make_cfg,
    make_learner,
    rollout,
    weights,
)

RECOMPUTES = {
    "actor.fsdp_config.gradient_checkpointing": True,
    "actor.model.hidden_sizes": [64, 64, 64],
}
# Two passes and a reference policy, which is a copy of the policy.
UPDATE = {"algorithm.update_epoch": 2, "algorithm.kl_beta": 0.1}


def kept_bytes(learner, batch):
    """Bytes of activations that wait for a backward pass over a rollout."""
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    own = {p.untyped_storage().data_ptr() for p in learner.engine.model.parameters()}
    sizes = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = learner.engine.forward(forward_inputs=inputs, compute_values=True)
    total = sum(sizes.values())
    (out["logprobs"].sum() + out["values"].sum()).backward()
    learner.engine.drop_gradients()
    return total


def test_an_update_is_the_same_and_keeps_less():
    plain = make_learner(make_cfg({**UPDATE, "actor.model.hidden_sizes": [64, 64, 64]}))
    learner = make_learner(make_cfg({**UPDATE, **RECOMPUTES}))
    batch = rollout(plain.engine.model)
    assert kept_bytes(learner, batch) < 0.5 * kept_bytes(plain, batch)
    for seed in range(2):
        batch = rollout(plain.engine.model, seed=seed)
        learn(plain, batch)
        _, metrics = learn(learner, batch)
    assert metrics["actor/kl_ref"] > 0
    assert distance(weights(learner), weights(plain)) == 0.0
    assert weights(learner).keys() == weights(plain).keys()


def test_a_copy_has_weights_of_its_own():
    policy = make_learner(make_cfg(RECOMPUTES)).engine.model
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.policy_head.parameters():
            parameter.zero_()
    batch = rollout(policy)
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    ours, theirs = (each.default_forward(inputs)["logprobs"] for each in (policy, other))
    assert not torch.equal(ours, theirs)


def test_a_policy_that_names_no_modules_says_so():
    class Plain(BasePolicy):
        def __init__(self):
            super().__init__(2)
            self.net = nn.Linear(3, 2)

        def default_forward(self, forward_inputs, **wanted):
            raise NotImplementedError

        def predict_action_batch(self, env_obs, mode="train", **sampling):
            raise NotImplementedError

    with pytest.raises(ValueError, match="Plain does not say which of its modules"):
        Plain().enable_gradient_checkpointing()
