"""Folders in the layout of OpenVLA and OpenVLA-OFT: read key by key, and written again.

A folder holds `config.json`, the weights of towers, projector and language model in safetensors,
the tokenizer, what is done to pictures, and `dataset_statistics.json`. What OpenVLA-OFT adds is in
files of its own, such as `proprio_projector--latest_checkpoint.pt`; so is the value function here.
Towers with FiLM have a file of theirs, beside which the towers of the safetensors files do not
count.

The layout scales states by quantiles to [-1, 1] and clips them there, where a policy of ours may
clip at other bounds: what is written has these bounds for quantiles, and the projector takes the
factor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlinf.models.embodiment.adapters import merged_state
from rlinf.models.embodiment.openvla.film import FILM_PART, FilmFile, film_tensors, name_in_file
from rlinf.models.embodiment.openvla.network import MAIN
from rlinf.models.embodiment.openvla.statistics import (
    STATISTICS_FILE,
    of_dataset,
    read_statistics,
)
from rlinf.models.embodiment.openvla.vision import HALVES, IMAGENET, TOWERS, Tower, is_film
from rlinf.models.fill import fill
from rlinf.models.tensor_files import LoadedTensors, tensors_of_folder

if TYPE_CHECKING:
    from rlinf.models.deferred import DeferredWeights
    from rlinf.models.embodiment.normalizer import ObsNormalizer
    from rlinf.models.embodiment.openvla.token_policy import TokenPolicy

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
PICTURES_FILE = "preprocessor_config.json"
PROJECTOR, NORMALIZER = "proprio_projector", "proprio_normalizer"
"""The projector of states, which has a file, and their scale, which is in the statistics."""

_LATEST = "--latest_checkpoint.pt"
_EPSILON = 1e-8
"""What the layout adds to the range of states that it divides by."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of a folder.

    Raises:
        ValueError: There is none, or it is that of another model.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ValueError(
            f"model_path is '{folder}', where there is no {CONFIG_FILE}; it must be a folder "
            "in the layout of OpenVLA. Weights of a run are named by runner.ckpt_path"
        )
    config = json.loads(file.read_text())
    if config.get("model_type") != "openvla":
        raise ValueError(
            f"{file} is of a model of type {config.get('model_type')!r}, not of 'openvla'"
        )
    return config


def towers_in(config: Mapping[str, Any]) -> list[Tower]:
    """Return the vision towers that a `config.json` describes.

    Sizes that are not those of timm's names are in `vision_towers`, which only folders that were
    written here have.

    Raises:
        ValueError: A tower is not known.
    """
    if "vision_towers" in config:
        return [Tower(**sizes) for sizes in config["vision_towers"]]
    names = config["timm_model_ids"]
    unknown = [name for name in names if name not in TOWERS]
    if unknown:
        raise ValueError(f"the vision tower {unknown[0]} is not known; known: {', '.join(TOWERS)}")
    return [TOWERS[name] for name in names]


def load_folder(
    policy: TokenPolicy,
    folder: Path,
    unnorm_key: str | None = None,
    deferral: DeferredWeights | None = None,
) -> None:
    """Give a policy the weights of a folder.

    Args:
        policy: Of the sizes that the folder's config says.
        folder: The folder.
        unnorm_key: Dataset whose statistics states are scaled by; None is the only one.
        deferral: What is told where weights come from, instead of loading them.

    Raises:
        ValueError: Tensors are missing, or there are some that the policy does not have; each is
            named.
    """
    source = tensors_of_folder(folder)
    if source is None:
        raise ValueError(f"{folder} has no weights in safetensors files")
    network = policy.network
    film = _film_file(policy, folder)
    main = [name for name in network.state_dict() if name.startswith(MAIN)]
    towers = [] if film is None else [n for n in main if n.startswith(f"{FILM_PART}.")]
    wanted = {name: name for name in main if name not in towers}
    fill(network, source, wanted, str(folder), deferral, ignored=towers)
    if film is not None:
        names = {name: name_in_file(name) for name in towers}
        fill(network, FilmFile(film), names, str(film), deferral)
    for name, part in _further(policy).items():
        file = _checkpoint(folder, name)
        if name == NORMALIZER:
            _scale_by_quantiles(part, folder, unnorm_key)
        elif file is not None:
            state = torch.load(file, map_location="cpu", weights_only=True)
            plain = {key.removeprefix("module."): value for key, value in state.items()}
            names = {name: name for name in part.state_dict()}
            fill(part, LoadedTensors(plain), names, str(file), deferral)
        elif name != "value_head":
            # A training with values may begin with a policy that has none.
            raise ValueError(
                f"{folder} has no {name}{_LATEST}; set model.use_proprio to false if the model "
                "was trained without the state"
            )


def save_folder(policy: TokenPolicy, folder: Path) -> None:
    """Write a policy into a folder in the public layout, adapters merged.

    Its dataset is called as the one whose statistics the policy was built with, else `rlinf`.

    Args:
        policy: Its tensors must be whole, not sharded.
        folder: Made if absent. What an earlier policy left there is replaced, its towers with FiLM
            included.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    network, bins = policy.network, policy.bins
    state = merged_state(network)
    main = {
        name: tensor.detach().contiguous()
        for name, tensor in state.items()
        if name.startswith(MAIN) and not is_film(name)
    }
    save_file(main, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    statistics: dict[str, Any] = {
        "action": {
            "q01": bins.low.tolist(),
            "q99": bins.high.tolist(),
            "mask": bins.mask.tolist(),
        }
    }
    unnorm_key = policy.settings.unnorm_key or "rlinf"
    normalizer = policy.normalizer
    if normalizer is not None:
        statistics |= _quantiles(normalizer)
    for name, part in _further(policy).items():
        tensors = part.state_dict()
        if name == PROJECTOR and normalizer is not None and normalizer.count > 0:
            tensors["fc1.weight"] = tensors["fc1.weight"] * normalizer.clip
        if name != NORMALIZER:
            torch.save(tensors, folder / f"{name}{_LATEST}")
    backbone = network.vision_backbone
    if _has_film(policy):
        torch.save(film_tensors(backbone, state), folder / f"{FILM_PART}{_LATEST}")
    else:
        # Of a policy that was there before: its towers would count, and not those of this one.
        for file in folder.glob(f"{FILM_PART}--*_checkpoint.pt"):
            file.unlink()
    found = [] if backbone is None else [backbone.featurizer, backbone.fused_featurizer]
    towers = [tower.tower for tower in found if tower is not None]
    names = {tower: name for name, tower in TOWERS.items()}
    text = network.language_model.config
    config: dict[str, Any] = {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "arch_specifier": "no-align+fused-gelu-mlp" if len(towers) > 1 else "no-align+gelu-mlp",
        "timm_model_ids": [names.get(tower, "") for tower in towers],
        "image_sizes": [tower.image_size for tower in towers],
        "image_resize_strategy": "resize-naive",
        "text_config": {
            **text.to_diff_dict(),
            "model_type": "llama",
            "vocab_size": text.vocab_size,
        },
        "pad_token_id": policy.prompts.pad,
        "pad_to_multiple_of": text.vocab_size - policy.vocabulary,
        "n_action_bins": bins.count,
        "norm_stats": {unnorm_key: statistics},
    }
    if any(tower not in names for tower in towers) or not towers:
        config["vision_towers"] = [asdict(tower) for tower in towers]
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2))
    (folder / STATISTICS_FILE).write_text(json.dumps({unnorm_key: statistics}, indent=2))
    if towers:
        (folder / PICTURES_FILE).write_text(json.dumps(_of_pictures(towers), indent=2))
    policy.prompts.tokenizer.save_pretrained(folder)


def _further(policy: TokenPolicy) -> dict[str, nn.Module]:
    """Return the parts that have files of their own."""
    parts = {
        PROJECTOR: policy.network.proprio_projector,
        NORMALIZER: policy.normalizer,
        "value_head": policy.value_head,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _has_film(policy: TokenPolicy) -> bool:
    backbone = policy.network.vision_backbone
    return backbone is not None and backbone.has_film


def _film_file(policy: TokenPolicy, folder: Path) -> Path | None:
    """Return the file of towers with FiLM; None if the policy has no FiLM.

    Raises:
        ValueError: The folder has such towers and the policy not, or the other way round.
    """
    file = _checkpoint(folder, FILM_PART)
    if file is None and _has_film(policy):
        raise ValueError(
            f"model.use_film is true, and {folder} has no {FILM_PART}{_LATEST}; set it to false if "
            "the model was trained without FiLM"
        )
    if file is not None and not _has_film(policy):
        raise ValueError(
            f"{file} has vision towers with FiLM, which the policy would do without: set "
            "model.model_type to openvla_oft, with model.use_film: true and its cameras"
        )
    return file


def _scale_by_quantiles(normalizer: ObsNormalizer, folder: Path, key: str | None) -> None:
    """Bring states from the 1st and 99th percentile of a dataset to -1 and 1, and clip them.

    A folder of ours that was written before any training says that there were none yet.
    """
    name, found = of_dataset(read_statistics(folder), key)
    if found.get("num_transitions") == 0:
        return
    proprio = found.get("proprio", {})
    if "q01" not in proprio or "q99" not in proprio:
        raise ValueError(
            f"{folder / STATISTICS_FILE}: the statistics of '{name}' have no q01 and q99 of "
            "proprio; set model.normalize_obs or model.use_proprio to false"
        )
    low, high = (
        torch.tensor(proprio[quantile], dtype=torch.float64) for quantile in ("q01", "q99")
    )
    normalizer.shift.copy_((low + high) / 2)
    normalizer.scale.copy_(2.0 / (high - low + _EPSILON))
    normalizer.count.fill_(found.get("num_transitions", 1))
    normalizer.clip = 1.0


def _quantiles(normalizer: ObsNormalizer) -> dict[str, Any]:
    """Return the statistics that scale states as a normaliser does, in parts of its bound.

    One that has seen no state yet has none: the first batch will say them.
    """
    if normalizer.count == 0:
        return {"num_transitions": 0}
    half = normalizer.clip / normalizer.scale.double() - _EPSILON / 2
    low, high = normalizer.shift.double() - half, normalizer.shift.double() + half
    return {
        "proprio": {"q01": low.tolist(), "q99": high.tolist()},
        "num_transitions": int(normalizer.count),
    }


def _of_pictures(towers: Sequence[Tower]) -> dict[str, Any]:
    """Return what is done to pictures, as the layout's image processor takes it."""
    norms = [IMAGENET if tower.imagenet else HALVES for tower in towers]
    return {
        "image_processor_type": "PrismaticImageProcessor",
        "use_fused_vision_backbone": len(towers) > 1,
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, tower.image_size, tower.image_size] for tower in towers],
        "interpolations": ["bicubic"] * len(towers),
        "means": [list(mean) for mean, _ in norms],
        "stds": [list(deviation) for _, deviation in norms],
    }


def _checkpoint(folder: Path, name: str) -> Path | None:
    """Return the file of a part, the newest one; None if there is none."""
    if (folder / f"{name}{_LATEST}").is_file():
        return folder / f"{name}{_LATEST}"
    numbered = {
        int(number): file
        for file in folder.glob(f"{name}--*_checkpoint.pt")
        if (number := file.name.removeprefix(f"{name}--").partition("_")[0]).isdigit()
    }
    return numbered[max(numbered)] if numbered else None
