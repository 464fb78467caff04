"""Flow policies with an action expert, small enough for a unit test."""

from __future__ import annotations

import torch

from rlinf.models.registry import get_model
from tests.unit_tests.models.flow_vla.filling import drawn
from tests.unit_tests.models.openvla.policies import SPEC

SMOLVLA_SIZES = {
    "vision": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    },
    "scale_factor": 2,
    "text": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "expert_hidden_size": 24,
    "expert_intermediate_size": 256,
    "max_state_dim": 8,
    "max_action_dim": 8,
}
OPENPI_SIZES = {
    "vision": SMOLVLA_SIZES["vision"] | {"patch_size": 8},
    "text": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 8,
    },
    "expert_hidden_size": 24,
    "expert_intermediate_size": 40,
    "max_state_dim": 8,
    "max_action_dim": 8,
}
GROOT_SIZES = {
    "vision": OPENPI_SIZES["vision"],
    "text": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "features": {"num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 8},
    "diffusion": {"num_layers": 4, "num_attention_heads": 3, "attention_head_dim": 8},
    "hidden_size": 20,
    "future_tokens": 3,
    "max_seq_len": 8,
    "max_state_dim": 8,
    "max_action_dim": 8,
}
SECTIONS = {
    "smolvla": {"model_type": "smolvla", "hf_config": SMOLVLA_SIZES},
    "pi0": {"model_type": "openpi", "variant": "pi0", "hf_config": OPENPI_SIZES},
    "pi05": {"model_type": "openpi", "variant": "pi05", "hf_config": OPENPI_SIZES},
}
LEROBOT_KINDS = list(SECTIONS)
"""Those whose numbers lerobot has made, and whose folders have its layout."""
SECTIONS["gr00t"] = {"model_type": "gr00t", "hf_config": GROOT_SIZES}
KINDS = list(SECTIONS)
LENGTHS = {"pi05": 24, "gr00t": 32}


def section(kind, **keys):
    """Return the model section of a policy."""
    return {
        **SECTIONS[kind],
        "words": ["open", "close", "the", "it", "faucet"],
        "max_prompt_length": LENGTHS.get(kind, 6),
        "num_images_in_input": 2,
        "num_action_chunks": 2,
        "num_steps": 3,
        **keys,
    }


def make(kind, seed=0, spec=SPEC, **keys):
    """Make a policy; keys are those of its model section. Weights of the network are drawn."""
    torch.manual_seed(seed)
    policy = get_model(section(kind, **keys), spec)
    fill(policy.network)
    return policy


def fill(network):
    """Give a network the weights of the references, drawn by the names that files have."""
    public, state = network.renamed, network.state_dict()
    drawings = {name: drawn(public.get(name, name), tuple(t.shape)) for name, t in state.items()}
    network.load_state_dict(drawings)


def names_and_shapes(network):
    """Return the shapes of a network's tensors by name, as lerobot writes them."""
    own = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    own |= {name: list(shape) for name, shape in network.unused.items()}
    # lerobot has the tied embedding under both of its names.
    for name, other in network.renamed.items():
        own[other] = own[name]
    return own
