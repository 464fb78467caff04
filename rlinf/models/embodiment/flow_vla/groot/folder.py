"""Folders in the layout of Isaac-GR00T: read key by key, and written.

A folder holds `config.json`, the weights in one or more safetensors files, and statistics of states
and actions in `experiment_cfg/metadata.json`. Folders of lerobot have names with a prefix and
another config. The tokenizer is not part of the published ones, but of those written here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlinf.models.embodiment.adapters import merged_state
from rlinf.models.embodiment.flow_vla.folder import CONFIG_FILE, SIZES_KEY, save_heads
from rlinf.models.embodiment.flow_vla.groot.metadata import write_metadata
from rlinf.models.embodiment.flow_vla.groot.sizes import GrootSizes
from rlinf.models.embodiment.flow_vla.sizes import changed

if TYPE_CHECKING:
    from rlinf.models.embodiment.flow_vla.policy import FlowVLAPolicy

LEROBOT_PREFIX = "_groot_model."
"""What lerobot's names begin with; Isaac-GR00T's do not."""
_TYPE, _LEROBOT_TYPE = "gr00t_n1_5", "groot"
_SHARD_SIZE = "5GB"


def read_config(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of a folder.

    Raises:
        ValueError: There is none, or it is that of another model.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ValueError(
            f"model_path is '{folder}', where there is no {CONFIG_FILE}; it must be a folder in "
            "the layout of Isaac-GR00T. Weights of a run are named by runner.ckpt_path"
        )
    config = json.loads(file.read_text())
    found = config.get("model_type", config.get("type"))
    if found not in (_TYPE, _LEROBOT_TYPE):
        raise ValueError(f"{file} is of a model of type {found!r}, not {_TYPE!r}")
    return config


def sizes_in(config: dict[str, Any], where: str) -> GrootSizes:
    """Return the sizes that a config says; those of vocabulary and image token are not in it.

    Raises:
        ValueError: The network is of another kind.
    """
    return changed(GrootSizes.of_config(config), config.get(SIZES_KEY, {}), where)


def save_folder(policy: FlowVLAPolicy, folder: Path) -> None:
    """Write a policy into a folder in the layout of Isaac-GR00T.

    Args:
        policy: Its tensors must be whole, not sharded; adapters are merged into the weights.
        folder: Made if absent.
    """
    from huggingface_hub import save_torch_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    network, scale, normalizer = policy.network, policy.scale, policy.normalizer
    weights = {name: tensor.detach().cpu() for name, tensor in merged_state(network).items()}
    save_torch_state_dict(weights, folder, max_shard_size=_SHARD_SIZE)
    save_heads(policy, folder)
    states = torch.zeros(policy.obs_dim), torch.ones(policy.obs_dim)
    if normalizer is not None:
        states = normalizer.shift.cpu(), 1.0 / normalizer.scale.cpu()
    maps = {"state": states, "action": (scale.shift.cpu(), scale.spread.cpu())}
    images = [network.image_size] * policy.settings.num_images_in_input
    write_metadata(folder, network.tag, maps, images)
    (folder / CONFIG_FILE).write_text(json.dumps(_config(policy), indent=2) + "\n")
    policy.prompts.tokenizer.save_pretrained(folder)


def _config(policy: FlowVLAPolicy) -> dict[str, Any]:
    sizes = policy.network.sizes
    config = {
        "model_type": _TYPE,
        "architectures": ["GR00T_N1_5"],
        "hidden_size": sizes.text.hidden_size,
        "action_horizon": policy.settings.action_horizon,
        "action_dim": sizes.max_action_dim,
        **sizes.config(),
    }
    config["action_head_cfg"] |= {
        "action_horizon": policy.settings.action_horizon,
        "num_inference_timesteps": policy.flow.num_steps,
        "noise_beta_alpha": policy.flow.time_alpha,
        "noise_beta_beta": 1.0,
        "noise_s": 0.999,
    }
    # These two are the tokenizer's.
    tokens = {"vocab_size": sizes.vocab_size, "image_token": sizes.image_token}
    told = replace(GrootSizes.of_config(config), **tokens)
    own = {key: value for key, value in asdict(sizes).items() if key not in tokens}
    return config if sizes == told else config | {SIZES_KEY: own}
