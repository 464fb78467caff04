"""What policies make of given actions: log-probabilities, and how far their own are from them."""

from __future__ import annotations

import pytest
import torch

from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec

BOX = EnvSpec(obs_dim=3, action_dim=2, action_low=[-1.0, 0.0], action_high=[1.0, 4.0])
CHOICES = EnvSpec(obs_dim=3, action_dim=2, action_low=[5.0, 0.0], action_choices=(3, 4))
OPEN = EnvSpec(obs_dim=3, action_dim=2)


def make(spec, **keys):
    torch.manual_seed(0)
    return get_model({"model_type": "mlp_policy", "hidden_sizes": [8], **keys}, spec)


def given(spec, chunks=1, count=6):
    torch.manual_seed(1)
    if spec is CHOICES:
        return torch.stack(
            [torch.randint(5, 8, (count, chunks)), torch.randint(0, 4, (count, chunks))], -1
        )
    return torch.rand(count, chunks, 2) * torch.tensor([2.0, 4.0]) - torch.tensor([1.0, 0.0])


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize(
    ("spec", "keys"),
    [(BOX, {}), (BOX, {"distribution": "squashed_gaussian"}), (CHOICES, {}), (OPEN, {})],
)
def test_log_probabilities_are_those_of_acting(spec, keys, chunks):
    policy = make(spec, num_action_chunks=chunks, **keys)
    states = torch.randn(6, 3)
    actions, result = policy.predict_action_batch({"states": states}, mode="train")
    if spec is BOX and not keys:
        # What was clipped cannot be told from the bound.
        drawn = result["forward_inputs"]["action"].view(6, chunks, 2)
        inside = ((drawn == actions).flatten(1)).float()
    else:
        inside = torch.ones(6, chunks * 2)
    out = policy(forward_type="sft", observations={"states": states}, actions=actions)
    torch.testing.assert_close(
        out["logprobs"] * inside, result["prev_logprobs"] * inside, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("spec", "keys"), [(BOX, {}), (BOX, {"distribution": "squashed_gaussian"}), (OPEN, {})]
)
def test_errors_are_parts_of_half_the_range(spec, keys):
    policy = make(spec, **keys)
    states, actions = torch.randn(6, 3), given(spec) * 0.9
    own, _ = policy.predict_action_batch({"states": states}, mode="eval")
    half = torch.tensor([1.0, 1.0] if spec is OPEN else [1.0, 2.0])
    out = policy(forward_type="sft", observations={"states": states}, actions=actions)
    inside = (own > -1) & (own < 4) if spec is OPEN else (own > torch.tensor([-1.0, 0.0]))
    expected = ((own - actions) / half).flatten(1)
    mask = inside.flatten(1)
    torch.testing.assert_close(out["errors"][mask], expected[mask], rtol=1e-3, atol=1e-3)
    out["errors"].square().sum().backward()
    assert policy.policy_head.head.weight.grad.abs().sum() > 0


def test_an_action_at_a_bound_stands_for_all_beyond_it():
    head = make(BOX).action_head
    at_bounds = head.from_env(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[-1.0, 4.0]]]))
    own = torch.tensor([[3.0, -2.0], [0.5, 1.0], [3.0, -2.0]], requires_grad=True)
    errors = head.errors(own, at_bounds)
    # Beyond the right bound, short of it, and beyond the wrong one.
    torch.testing.assert_close(errors, torch.tensor([[0.0, 0.0], [-0.5, 0.5], [4.0, -3.0]]))
    errors.square().sum().backward()
    assert own.grad[0].tolist() == [0.0, 0.0] and (own.grad[1:] != 0).all()


def test_choices_differ_or_do_not():
    policy = make(CHOICES)
    states = torch.randn(6, 3)
    own, _ = policy.predict_action_batch({"states": states}, mode="eval")
    other = own.clone()
    other[2:, 0, 1] = (other[2:, 0, 1] + 1) % 4
    out = policy(forward_type="sft", observations={"states": states}, actions=other)
    assert out["errors"].tolist() == [[0.0, 0.0]] * 2 + [[0.0, 1.0]] * 4
    assert not out["errors"].requires_grad and out["logprobs"].requires_grad


def test_pictures_are_shifted_unless_told_otherwise():
    spec = EnvSpec(obs_dim=3, action_dim=2, image_shape=(16, 16, 3))
    torch.manual_seed(0)
    keys = {"model_type": "cnn_policy", "image_size": 16, "random_shift": 2, "channels": [4, 4]}
    policy = get_model(keys, spec)
    obs = {"states": torch.randn(5, 3), "main_images": torch.randint(0, 255, (5, 16, 16, 3)).byte()}
    actions = torch.zeros(5, 1, 2)

    def errors(augment):
        return policy(forward_type="sft", observations=obs, actions=actions, augment=augment)[
            "errors"
        ]

    assert torch.equal(errors(False), errors(False))
    assert not torch.equal(errors(True), errors(True))
