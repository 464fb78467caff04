"""Computes what SmolVLA, pi0 and pi0.5 of lerobot 0.6.1 give at small sizes.

Run in an environment with Python 3.12 and `lerobot==0.6.1`, `transformers>=5.4,<5.6`, `accelerate`
and `num2words`:

    python tests/unit_tests/models/flow_vla/make_lerobot_references.py

It writes `references/*.npz` beside this file: inputs, outputs, and names and shapes of all tensors.
Weights are drawn by name, see `filling`, and are not written.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from filling import drawn
from torch import nn

FOLDER = Path(__file__).parent / "references"
STATE, ACTION, PADDED, CHUNK, BATCH = 5, 3, 8, 5, 2
PICTURES = {"observation.images.main": (12, 20), "observation.images.wrist": (24, 16)}
SMOLVLM = {
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    },
    "text_config": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 40,
        "rms_norm_eps": 1e-5,
    },
    "scale_factor": 2,
}
GEMMAS = {
    "gemma_2b": {"width": 32, "mlp_dim": 48},
    "gemma_300m": {"width": 24, "mlp_dim": 40},
}
HEADS = {"depth": 3, "num_heads": 8, "num_kv_heads": 1, "head_dim": 8}
VOCABULARY = 40


def features():
    """Return what policies see and do."""
    from lerobot.configs import FeatureType, PolicyFeature

    seen = {
        name: PolicyFeature(FeatureType.VISUAL, (3, *shape)) for name, shape in PICTURES.items()
    }
    seen["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE,))
    return {
        "input_features": seen,
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        "device": "cpu",
    }


def fill(model: nn.Module) -> dict[str, list[int]]:
    """Give a model weights drawn by name, tied ones by their first; return names and shapes."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(drawn(name, tuple(tensor.shape)))
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def smolvla():
    """Return a small SmolVLA; nothing is downloaded."""
    from lerobot.policies.smolvla import (
        configuration_smolvla,
        modeling_smolvla,
        smolvlm_with_expert,
    )
    from transformers import SmolVLMConfig

    config = configuration_smolvla.SmolVLAConfig(
        **features(),
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_state_dim=PADDED,
        max_action_dim=PADDED,
        resize_imgs_with_padding=(16, 16),
        num_vlm_layers=4,
        num_steps=4,
    )
    tokenizer = SimpleNamespace(fake_image_token_id=1, global_image_token_id=2)
    with (
        mock.patch.object(
            smolvlm_with_expert.AutoConfig, "from_pretrained", lambda _: SmolVLMConfig(**SMOLVLM)
        ),
        mock.patch.object(
            smolvlm_with_expert.AutoProcessor,
            "from_pretrained",
            lambda _: SimpleNamespace(tokenizer=tokenizer),
        ),
    ):
        return modeling_smolvla.SmolVLAPolicy(config)


def tiny_paligemma():
    """Return a config of PaliGemma with a small vision tower."""
    from transformers import PaliGemmaConfig

    vision = SMOLVLM["vision_config"] | {"patch_size": 8, "vision_use_head": False}
    return PaliGemmaConfig(vision_config={"model_type": "siglip_vision_model"} | vision)


def openpi(modeling, policy, config):
    """Return a small pi0 or pi0.5; sizes that lerobot fixes are changed before or after."""
    from transformers import GemmaConfig

    configs = {"paligemma": tiny_paligemma, "gemma": GemmaConfig}
    sizes = {name: modeling.GemmaConfig(**own, **HEADS) for name, own in GEMMAS.items()}
    with (
        mock.patch.object(modeling, "CONFIG_MAPPING", configs),
        mock.patch.object(modeling, "get_gemma_config", sizes.get),
    ):
        made = policy(
            config(
                **features(),
                chunk_size=CHUNK,
                n_action_steps=CHUNK,
                max_state_dim=PADDED,
                max_action_dim=PADDED,
                image_resolution=(16, 16),
                num_inference_steps=4,
            )
        )
    both = made.model.paligemma_with_expert
    # The layers of SigLIP's MLPs have fixed sizes there, and so have projector and vocabulary.
    vision = both.paligemma.model.vision_tower
    for layer in getattr(vision, "vision_model", vision).encoder.layers:
        layer.mlp.fc1, layer.mlp.fc2 = nn.Linear(16, 24), nn.Linear(24, 16)
    width = GEMMAS["gemma_2b"]["width"]
    both.paligemma.model.multi_modal_projector.linear = nn.Linear(16, width)
    embedding = both.paligemma.model.language_model.embed_tokens
    embedding.weight = nn.Parameter(embedding.weight[:VOCABULARY].detach().clone())
    both.paligemma.lm_head.weight = embedding.weight
    unused = both.gemma_expert.lm_head
    unused.weight = nn.Parameter(unused.weight[:VOCABULARY].detach().clone())
    return made


def pi0():
    """Return a small pi0."""
    from lerobot.policies.pi0 import configuration_pi0, modeling_pi0

    return openpi(modeling_pi0, modeling_pi0.PI0Policy, configuration_pi0.PI0Config)


def pi05():
    """Return a small pi0.5."""
    from lerobot.policies.pi05 import configuration_pi05, modeling_pi05

    return openpi(modeling_pi05, modeling_pi05.PI05Policy, configuration_pi05.PI05Config)


def inputs() -> dict[str, torch.Tensor]:
    """Return observations, actions and noise."""
    random = np.random.RandomState(0)
    found = {
        name: random.randint(0, 256, (BATCH, *shape, 3)).astype(np.uint8)
        for name, shape in PICTURES.items()
    }
    ids = random.randint(3, VOCABULARY, (BATCH, 6))
    ids[1, 4:] = 0
    found |= {"ids": ids, "valid": ids != 0}
    for name, shape in {
        "state": (BATCH, STATE),
        "actions": (BATCH, CHUNK, ACTION),
        "noise": (BATCH, CHUNK, PADDED),
    }.items():
        found[name] = random.standard_normal(shape).astype(np.float32)
    found["time"] = np.array([0.3, 0.95], dtype=np.float32)
    return {name: torch.from_numpy(array) for name, array in found.items()}


@torch.no_grad()
def outputs(policy: nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return prepared pictures, losses of flow matching, and what sampling leads to."""
    batch = {name: given[name].permute(0, 3, 1, 2).float() / 255.0 for name in PICTURES}
    prepare = getattr(policy, "prepare_images", None) or policy._preprocess_images
    pictures, masks = prepare(batch)
    pad = nn.functional.pad
    state = pad(given["state"], (0, PADDED - STATE))
    actions = pad(given["actions"], (0, PADDED - ACTION))
    seen = [pictures, masks, given["ids"], given["valid"]]
    if policy.name != "pi05":
        seen.append(state)
    found = {f"pixels_{number}": picture for number, picture in enumerate(pictures)}
    found["losses"] = policy.model.forward(*seen, actions, given["noise"], given["time"])
    found["sampled"] = policy.model.sample_actions(*seen, noise=given["noise"])
    return found


def main() -> None:
    """Write one file per model."""
    FOLDER.mkdir(exist_ok=True)
    for make in (smolvla, pi0, pi05):
        policy = make().eval()
        shapes, given = fill(policy.model), inputs()
        arrays = given | outputs(policy, given)
        np.savez_compressed(
            FOLDER / f"{make.__name__}.npz",
            layout=np.frombuffer(json.dumps(shapes).encode(), dtype=np.uint8),
            **{name: tensor.numpy() for name, tensor in arrays.items()},
        )


if __name__ == "__main__":
    main()
