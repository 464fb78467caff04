"""Reward models: what they look at, and what they say of observations that do not fit."""

import pytest
import torch

from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec

SPEC = EnvSpec(obs_dim=3, image_shape=(20, 24, 3))


def model(**section):
    torch.manual_seed(0)
    return get_model(section, SPEC)


def test_states_are_normalised_and_each_sample_is_on_its_own():
    own = model(model_type="mlp_reward_model", hidden_sizes=[8])
    states = torch.randn(50, 3) * 100 + 7
    own.update_normalizer({"states": states})
    logits = own({"states": states})
    assert logits.shape == (50,) and logits.dtype == torch.float32
    alone = torch.cat([own({"states": states[i : i + 1]}) for i in range(50)])
    assert torch.allclose(logits, alone, atol=1e-6)
    shifted = model(model_type="mlp_reward_model", hidden_sizes=[8])
    shifted.update_normalizer({"states": states * 3 + 1})
    assert torch.allclose(shifted({"states": states * 3 + 1}), logits, atol=1e-4)


@pytest.mark.parametrize("use_states", [True, False])
def test_pictures_matter_and_states_only_if_they_are_used(use_states):
    own = model(
        model_type="cnn_reward_model",
        channels=[8],
        image_size=16,
        feature_dim=8,
        hidden_sizes=[8],
        use_states=use_states,
    )
    assert own.observation_names == ["main_images", "states"][: 1 + use_states]
    pictures = torch.randint(0, 256, (4, 20, 24, 3), dtype=torch.uint8)
    seen = {"main_images": pictures, "states": torch.randn(4, 3)}
    logits = own(seen)
    assert logits.shape == (4,)
    assert not torch.equal(own({**seen, "main_images": 255 - pictures}), logits)
    changed = own({**seen, "states": seen["states"] + 5})
    assert torch.equal(changed, logits) != use_states


def test_observations_that_do_not_fit_are_named():
    own = model(model_type="mlp_reward_model")
    with pytest.raises(ValueError, match="built for 3 numbers per observation, but 'states' has 4"):
        own({"states": torch.zeros(1, 4)})
    with pytest.raises(ValueError, match="needs 'states' in the observations: main_images"):
        own({"main_images": torch.zeros(1, 2, 2, 3)})
