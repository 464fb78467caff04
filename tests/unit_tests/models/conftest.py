"""Policies of all kinds on small observations."""

import pytest
import torch

from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec

torch.set_num_threads(1)

SPEC = EnvSpec(obs_dim=6, action_dim=3, action_low=[-1, -2, 0], action_high=[1, 2, 1])
CHOICES = EnvSpec(obs_dim=6, action_choices=[2, 4, 3], action_low=[0, -1, 5])
EVEN_CHOICES = EnvSpec(obs_dim=6, action_choices=[3, 3, 3])
SMALL_CNN = {"model_type": "cnn_policy", "image_size": 24, "channels": [8, 16], "feature_dim": 16}
FLOW_IMAGES = {**SMALL_CNN, "model_type": "flow_policy", "use_images": True}


@pytest.fixture(autouse=True)
def _same_kernels():
    """Let each test multiply with the same kernels.

    After a product in bf16 that a CPU without it cannot do, torch leaves oneDNN aside for good, and
    other kernels round a row by the size of its batch.
    """
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = before


def build_policy(model_type="mlp_policy", *, spec=SPEC, seed=0, dtype=None, **keys):
    """Build a policy with a value head on the spec of these tests."""
    torch.manual_seed(seed)
    base = SMALL_CNN if model_type == "cnn_policy" else {"model_type": model_type}
    return get_model({**base, "add_value_head": True, **keys}, spec, dtype)


def draw_obs(batch=8, seed=1):
    """Draw a batch of observations."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (batch, 24, 24, 3), generator=generator, dtype=torch.uint8)
    states = torch.randn(batch, 6, generator=generator) * 3 + 1
    return {"states": states, "main_images": images, "task_descriptions": None}


@pytest.fixture
def make_policy():
    """Builds a policy with a value head on the spec of these tests."""
    return build_policy


@pytest.fixture
def make_obs():
    """Draws a batch of observations."""
    return draw_obs


ACTOR_CRITICS = [
    {},
    {"num_action_chunks": 4},
    {"num_action_chunks": 4, "value_type": "action_level"},
    {"state_dependent_std": True, "num_action_chunks": 2},
    {"share_trunk": True, "activation": "silu"},
    {"distribution": "squashed_gaussian", "num_action_chunks": 2},
    {"distribution": "squashed_gaussian", "state_dependent_std": True, "activation": "elu"},
    {"add_value_head": False, "activation": "relu"},
    {"normalize_obs": False, "clip_actions": False, "orthogonal_init": False},
    {"hidden_sizes": []},
    {"hidden_sizes": [], "share_trunk": True},
    {"model_type": "cnn_policy"},
    {"model_type": "cnn_policy", "pooling": "spatial_softmax", "num_action_chunks": 2},
    {"model_type": "cnn_policy", "random_shift": 3, "state_dependent_std": True},
    {"model_type": "cnn_policy", "use_states": False, "distribution": "squashed_gaussian"},
    {"spec": CHOICES},
    {"spec": CHOICES, "num_action_chunks": 3, "value_type": "action_level"},
    {"spec": EVEN_CHOICES, "num_action_chunks": 2, "share_trunk": True},
    {"spec": CHOICES, "model_type": "cnn_policy", "distribution": "multi_categorical"},
]
FLOW_POLICIES = [
    {"model_type": "flow_policy", "hidden_sizes": [16]},
    {"model_type": "flow_policy", "num_action_chunks": 4, "value_type": "action_level"},
    {"model_type": "flow_policy", "joint_logprob": True, "num_action_chunks": 2},
    {"model_type": "flow_policy", "noise_method": "flow_noise", "num_steps": 2},
    {"model_type": "flow_policy", "noise_method": "reinflow", "joint_logprob": True},
    {"model_type": "flow_policy", "noise_method": "flow_cps", "noise_level": 0.4},
    {**FLOW_IMAGES, "random_shift": 2, "num_action_chunks": 2},
    {"model_type": "flow_policy", "num_action_chunks": 2, "action_horizon": 5},
]
VARIANTS = [*ACTOR_CRITICS, *FLOW_POLICIES]


def name_of(keys):
    """Says in short which variant it is."""
    words = [str(getattr(value, "action_choices", value)) for value in keys.values()]
    return "-".join(words) or "default"


@pytest.fixture(params=VARIANTS, ids=name_of)
def variant(request):
    """Keys of one way to build a policy."""
    return request.param
