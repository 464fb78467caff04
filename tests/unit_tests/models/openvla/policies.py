"""Token policies small enough for a unit test, and what they see."""

from __future__ import annotations

import torch

from rlinf.models.registry import get_model
from rlinf.utils.env_spec import EnvSpec

TEXTS = ["open the faucet", "close it"]
SPEC = EnvSpec(obs_dim=5, action_dim=3, action_low=(-1, -2, 0), action_high=(1, 2, 4))
LLM = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOWERS = [
    {
        "embed_dim": 16,
        "depth": 3,
        "num_heads": 2,
        "mlp_dim": 24,
        "patch_size": 4,
        "image_size": 8,
        "class_token": True,
        "reg_tokens": 2,
        "layer_scale": True,
        "imagenet": True,
    },
    {
        "embed_dim": 12,
        "depth": 3,
        "num_heads": 2,
        "mlp_dim": 20,
        "patch_size": 4,
        "image_size": 8,
        "attn_pool": True,
    },
]


def section(kind="openvla_oft", **keys):
    """Return the model section of a policy."""
    return {
        "model_type": kind,
        "hf_config": LLM,
        "words": ["open", "close", "the", "it", "faucet"],
        "prompt": "{task}",
        "max_prompt_length": 6,
        "num_action_chunks": 2,
        "n_action_bins": 16,
        **keys,
    }


def make(kind="openvla_oft", seed=0, spec=SPEC, **keys):
    """Make a policy; keys are those of its model section."""
    torch.manual_seed(seed)
    policy = get_model(section(kind, **keys), spec)
    # With fresh weights all bins are nearly alike.
    with torch.no_grad():
        policy.network.language_model.lm_head.weight.mul_(20.0)
    return policy


def observe(count=4, seed=0, cameras=0, size=8):
    """Return observations of so many envs, and pictures of so many cameras."""
    rng = torch.Generator().manual_seed(seed)
    obs = {
        "states": torch.randn(count, 5, generator=rng),
        "task_descriptions": [TEXTS[i % 2] for i in range(count)],
    }
    if cameras:
        shape = (count, cameras, size, size, 3)
        pictures = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
        obs["main_images"] = pictures[:, 0]
        if cameras > 1:
            obs["wrist_images"] = pictures[:, 1:]
    return obs
