"""Computes what GR00T N1.5 of lerobot 0.4.4 gives at small sizes; later ones have N1.7 only.

Run in an environment with Python 3.10 to 3.12 and `lerobot==0.4.4`, `transformers==4.57.1`, `peft`
and `dm-tree`; flash-attn is not needed:

    python tests/unit_tests/models/flow_vla/groot/make_lerobot_reference.py

It writes `../references/gr00t.npz`: inputs, outputs, and names and shapes of all tensors. Weights
are drawn by name, see `filling`, and are not written. Samples are computed one at a time, without
padding, which lerobot's action head would attend to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from filling import drawn_robots  # noqa: E402

FILE = Path(__file__).parent.parent / "references" / "gr00t.npz"
CHUNK, STATE, ACTION, BATCH, STEPS, ROBOT = 5, 5, 3, 2, 4, 31
PADDED, VOCABULARY, IMAGE, PLACES = 8, 40, 7, 4
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
TEXT = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
DIFFUSION = {
    "num_layers": 4,
    "num_attention_heads": 3,
    "attention_head_dim": 8,
    "cross_attention_dim": TEXT["hidden_size"],
    "output_dim": 20,
    "interleave_self_attention": True,
    "norm_type": "ada_norm",
    "positional_embeddings": None,
    "dropout": 0.2,
    "final_dropout": True,
}
FEATURES = {
    "num_layers": 2,
    "num_attention_heads": 4,
    "attention_head_dim": 8,
    "positional_embeddings": None,
    "dropout": 0.2,
    "final_dropout": True,
}
HEAD = {
    "diffusion_model_cfg": DIFFUSION,
    "vl_self_attention_cfg": FEATURES,
    "input_embedding_dim": 24,
    "backbone_embedding_dim": TEXT["hidden_size"],
    "hidden_size": 20,
    "max_seq_len": 8,
    "num_target_vision_tokens": 3,
    "max_state_dim": PADDED,
    "action_dim": PADDED,
    "action_horizon": CHUNK,
    "num_inference_timesteps": STEPS,
}


def groot() -> nn.Module:
    """Return a small GR00T; nothing is downloaded."""
    from lerobot.policies.groot import groot_n1
    from lerobot.policies.groot.eagle2_hg_model import (
        configuration_eagle2_5_vl,
        modeling_eagle2_5_vl,
    )
    from transformers import SiglipVisionModel

    eagle = configuration_eagle2_5_vl.Eagle25VLConfig(
        vision_config=VISION,
        text_config=TEXT,
        select_layer=-1,
        image_token_index=IMAGE,
        use_pixel_shuffle=False,
        mlp_connector_layers=1,
        _attn_implementation="eager",
    )
    vision = SiglipVisionModel(eagle.vision_config)
    config = groot_n1.GR00TN15Config(
        backbone_cfg={"select_layer": 2, "project_to_dim": None},
        action_head_cfg=HEAD,
        action_horizon=CHUNK,
        action_dim=PADDED,
    )

    def made(config, **_):
        return modeling_eagle2_5_vl.Eagle25VLForConditionalGeneration(config, vision_model=vision)

    with (
        mock.patch.object(groot_n1, "ensure_eagle_cache_ready"),
        mock.patch.object(groot_n1.AutoConfig, "from_pretrained", lambda *_, **__: eagle),
        mock.patch.object(groot_n1.AutoModel, "from_config", made),
    ):
        return groot_n1.GR00TN15(config, local_model_path="")


def fill(model: nn.Module) -> dict[str, list[int]]:
    """Give a model weights drawn by name, tied ones by their first; return names and shapes."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(drawn_robots(name, tuple(tensor.shape)))
    buffers = ("beta_dist", "position_ids")
    state = {n: t for n, t in model.state_dict().items() if not n.endswith(buffers)}
    return {name: list(tensor.shape) for name, tensor in state.items()}


def inputs() -> dict[str, torch.Tensor]:
    """Return observations, actions, noise and times; the second prompt is shorter."""
    random = np.random.RandomState(1)
    image = [IMAGE] * PLACES
    words = random.randint(8, VOCABULARY, (BATCH, 8)).tolist()
    # Two cameras; 0 is padding, on the left.
    first = [*words[0][:3], *image, words[0][3], *image, *words[0][4:]]
    second = [0, 0, 0, *words[1][:2], *image, *image, *words[1][4:7]]
    ids = np.array([first, second])
    found = {"ids": ids, "valid": ids != 0}
    for name, shape in {
        "pixels": (BATCH, 2, 3, 16, 16),
        "state": (BATCH, STATE),
        "actions": (BATCH, CHUNK, ACTION),
        "noise": (BATCH, CHUNK, PADDED),
    }.items():
        found[name] = random.standard_normal(shape).astype(np.float32)
    # From 0 (noise) to 1, as GR00T counts it; 937.5 is rounded down to 937 thousandths.
    found["time"] = np.array([0.25, 0.9375], dtype=np.float32)
    return {name: torch.from_numpy(array) for name, array in found.items()}


@torch.no_grad()
def outputs(model: nn.Module, given: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """Return features of Eagle, the velocity and the loss at a time, and what sampling leads to."""
    from lerobot.policies.groot.action_head import flow_matching_action_head as head

    valid = given["valid"][row]
    ids = given["ids"][row, valid][None]
    pad = nn.functional.pad
    actions = pad(given["actions"][row], (0, PADDED - ACTION))[None]
    mask = torch.zeros_like(actions)
    mask[..., :ACTION] = 1
    batch = {
        "eagle_pixel_values": given["pixels"][row],
        "eagle_input_ids": ids,
        "eagle_attention_mask": torch.ones_like(ids),
        "eagle_image_sizes": None,
        "state": pad(given["state"][row], (0, PADDED - STATE))[None, None],
        "embodiment_id": torch.tensor([ROBOT]),
        "action": actions,
        "action_mask": mask,
    }
    model_head, seen = model.action_head, []
    hook = model_head.action_decoder.register_forward_hook(lambda *a: seen.append(a[-1]))
    refined = []
    process = model_head.vl_self_attention.register_forward_hook(lambda *a: refined.append(a[-1]))
    noise, time = given["noise"][row][None], given["time"][row : row + 1]
    with (
        mock.patch.object(head.torch, "randn", lambda *_, **__: noise),
        mock.patch.object(model_head, "sample_time", lambda *_, **__: time),
    ):
        loss = model.action_head(model.backbone(batch), model_head.prepare_input(batch))["loss"]
        velocity = seen[0][0, -CHUNK:]
        sampled = model_head.get_action(model.backbone(batch), model_head.prepare_input(batch))
    hook.remove()
    process.remove()
    memory = torch.zeros(len(valid), TEXT["hidden_size"])
    memory[valid] = refined[0][0]
    return {
        "memory": memory,
        "velocity": velocity,
        "loss": loss,
        "sampled": sampled["action_pred"][0],
    }


def main() -> None:
    """Write the file."""
    model = groot().eval()
    shapes, given = fill(model), inputs()
    rows = [outputs(model, given, row) for row in range(BATCH)]
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    np.savez_compressed(
        FILE,
        layout=np.frombuffer(json.dumps(shapes).encode(), dtype=np.uint8),
        **{name: tensor.numpy() for name, tensor in (given | found).items()},
    )


if __name__ == "__main__":
    main()
