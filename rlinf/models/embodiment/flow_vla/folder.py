"""Folders in the layouts of lerobot and openpi: read key by key, and written as lerobot does.

A folder holds `config.json`, the weights in `model.safetensors`, and statistics of states and
actions. The tokenizer is not part of the published ones, but of those written here; so are the
value function and the learned noise, in files of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf.models.embodiment.adapters import merged_state
from rlinf.models.embodiment.flow_vla.layouts import Layout
from rlinf.models.embodiment.flow_vla.scaling import MEAN_STD
from rlinf.models.embodiment.flow_vla.statistics import PREPROCESSOR
from rlinf.models.fill import fill
from rlinf.models.tensor_files import SafetensorsFiles, TensorSource, tensors_of_folder

if TYPE_CHECKING:
    from rlinf.models.deferred import DeferredWeights
    from rlinf.models.embodiment.flow_vla.network import ExpertNetwork
    from rlinf.models.embodiment.flow_vla.policy import FlowVLAPolicy

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
PREFIX = "model."
"""What lerobot's names begin with; openpi's do not."""
SIZES_KEY = "network_sizes"
"""Key of `config.json` with sizes that differ from the published ones; ours alone."""
STEERING = "steering"
"""Name of the actor of a policy whose noise is chosen."""
_HEADS = ("value_head", "noise_net", STEERING, "steering_encoders")
_OLD_STATISTICS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
"""Tensors that early versions of lerobot kept with the weights; they are not used."""


def read_config(folder: Path, layout: Layout) -> dict[str, Any]:
    """Read the `config.json` of a folder.

    Raises:
        ValueError: There is none, or it is that of another model.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ValueError(
            f"model_path is '{folder}', where there is no {CONFIG_FILE}; it must be a folder "
            "in the layout of lerobot or openpi. Weights of a run are named by runner.ckpt_path"
        )
    config = json.loads(file.read_text())
    # openpi's own folders do not say which model it is; the names of their tensors do.
    if config.get("type", layout.name) != layout.name:
        raise ValueError(f"{file} is of a model of type {config['type']!r}, not {layout.name!r}")
    return config


def weights_in(folder: Path) -> TensorSource:
    """Return the weights of a folder.

    Raises:
        ValueError: There are none.
    """
    source = tensors_of_folder(folder)
    if source is None:
        raise ValueError(f"{folder} has no weights in safetensors files")
    return source


def vocabulary_in(source: TensorSource, layout: Layout, prefix: str = PREFIX) -> int:
    """Return the rows of the embedding of tokens.

    Args:
        source: The weights.
        layout: Which model it is.
        prefix: What names may begin with.

    Raises:
        ValueError: There is no such tensor.
    """
    name, there = layout.network.token_embedding, source.names()
    for known in (name, layout.network.renamed.get(name, name)):
        for full in (known, prefix + known):
            if full in there:
                return source.shape(full)[0]
    raise ValueError(f"the weights are not those of {layout.name}: missing {name}")


def load_folder(
    policy: FlowVLAPolicy,
    folder: Path,
    source: TensorSource,
    deferral: DeferredWeights | None = None,
    prefix: str = PREFIX,
) -> None:
    """Give a policy the weights of a folder.

    Args:
        policy: Of the sizes that the folder's config says.
        folder: The folder.
        source: Its weights.
        deferral: What is told where weights come from, instead of loading them.
        prefix: What names may begin with.

    Raises:
        ValueError: Tensors are missing, or there are some that the policy does not have; each is
            named. Or the folder's policy has noise that is chosen, and this one does not.
    """
    steering = folder / f"{STEERING}.safetensors"
    if steering.is_file() and not hasattr(policy, STEERING):
        raise ValueError(
            f"{steering} chooses the noise of that policy: set model.use_dsrl to true, or load a "
            "copy of the folder without that file"
        )
    network = policy.network
    there = set(source.names())
    prefix = prefix if any(name.startswith(prefix) for name in there) else ""
    names = {name: prefix + name for name in network.state_dict()}
    for own, other in network.renamed.items():
        if names[own] not in there:
            names[own] = prefix + other
    ignored = {name for name in there if name.startswith(_OLD_STATISTICS)}
    ignored |= {prefix + name for name in (*network.unused, *network.renamed.values())}
    fill(network, source, names, str(folder), deferral, ignored)
    for name in _HEADS:
        part, file = getattr(policy, name, None), folder / f"{name}.safetensors"
        # A training with values may begin with a policy that has none.
        if part is not None and file.is_file():
            own = {key: key for key in part.state_dict()}
            fill(part, SafetensorsFiles([file]), own, str(file), deferral)


def save_folder(policy: FlowVLAPolicy, folder: Path) -> None:
    """Write a policy into a folder in the layout of lerobot, adapters merged.

    Args:
        policy: Its tensors must be whole, not sharded.
        folder: Made if absent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    network, layout = policy.network, policy.layout
    _write(folder / WEIGHTS_FILE, {PREFIX + k: v for k, v in _public(network).items()})
    save_heads(policy, folder)
    scale, normalizer = policy.scale, policy.normalizer
    statistics = {"action.mean": scale.shift, "action.std": scale.spread}
    if normalizer is not None:
        statistics["observation.state.mean"] = normalizer.shift
        statistics["observation.state.std"] = 1.0 / normalizer.scale
    _write(folder / PREPROCESSOR.replace("*", "5"), statistics)
    post = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    _write(folder / post, statistics)
    (folder / CONFIG_FILE).write_text(json.dumps(_config(policy, layout), indent=2) + "\n")
    policy.prompts.tokenizer.save_pretrained(folder)


def save_heads(policy: FlowVLAPolicy, folder: Path) -> None:
    """Write the parts that public layouts do not have, each into a file of its own."""
    for name in _HEADS:
        part = getattr(policy, name, None)
        if part is not None:
            _write(folder / f"{name}.safetensors", part.state_dict())


def _public(network: ExpertNetwork) -> dict[str, Tensor]:
    """Return tensors under the names of the public layout; unused ones are zero."""
    state = merged_state(network)
    found = {network.renamed.get(name, name): tensor for name, tensor in state.items()}
    kind = network.action_in_proj.weight.dtype
    return found | {name: torch.zeros(s, dtype=kind) for name, s in network.unused.items()}


def _config(policy: FlowVLAPolicy, layout: Layout) -> dict[str, Any]:
    network, size = policy.network, policy.network.image_size
    seen: dict[str, Any] = {"observation.state": {"type": "STATE", "shape": [policy.obs_dim]}}
    for number in range(policy.settings.num_images_in_input):
        key = f"observation.images.camera{number + 1}"
        seen[key] = {"type": "VISUAL", "shape": [3, size, size]}
    state = "IDENTITY" if policy.normalizer is None else MEAN_STD
    config = {
        "type": layout.name,
        "n_obs_steps": 1,
        "input_features": seen,
        "output_features": {"action": {"type": "ACTION", "shape": [policy.action_dim]}},
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": state, "ACTION": MEAN_STD},
        "chunk_size": policy.settings.action_horizon,
        "n_action_steps": policy.num_action_chunks,
        "max_state_dim": network.state_dim,
        "max_action_dim": network.action_dim,
        **network.sizes.config(),
    }
    own = asdict(network.sizes)
    told = asdict(layout.sizes.of_config(config)) | {"vocab_size": own["vocab_size"]}
    return config if own == told else config | {SIZES_KEY: own}


def _write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, file, metadata={"format": "pt"})
