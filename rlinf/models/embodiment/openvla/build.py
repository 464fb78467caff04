"""Builds a token policy from its model section: fresh, or from a folder in the public layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.config.suggest import did_you_mean
from rlinf.models.embodiment.base_policy import ActionRange
from rlinf.models.embodiment.openvla.bins import ActionBins
from rlinf.models.embodiment.openvla.network import OpenVLANetwork
from rlinf.models.embodiment.openvla.prompts import PromptEncoder, folder_tokenizer, word_tokenizer
from rlinf.models.embodiment.openvla.statistics import action_statistics
from rlinf.models.embodiment.openvla.token_policy import TokenPolicy, TokenSettings
from rlinf.models.embodiment.openvla.vision import Tower
from rlinf.models.settings import needed

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec

Policy = TypeVar("Policy", bound=TokenPolicy)

ROW_MULTIPLE = 64
"""Rows of the embedding besides the vocabulary, as in OpenVLA's files."""


def build_token_policy(
    kind: type[Policy], cfg: DictConfig, torch_dtype: torch.dtype, env_spec: EnvSpec | None
) -> Policy:
    """Build a policy.

    Args:
        kind: Its class.
        cfg: Its model section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says the range of actions.

    Returns:
        The policy, with the weights at `model_path` if that is set.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    if cfg.tokenizer_path is not None:
        tokenizer = folder_tokenizer(cfg.tokenizer_path)
    else:
        tokenizer = word_tokenizer(cfg.words)
    prompts = PromptEncoder(tokenizer, cfg.prompt, cfg.max_prompt_length)
    vocabulary = len(tokenizer) + cfg.n_action_bins
    if not cfg.hf_config:
        raise ValueError(
            f"{cfg.model_type} has neither model_path nor hf_config: name a folder with weights, "
            "or give the sizes of a fresh language model in hf_config, such as hidden_size and "
            "num_hidden_layers"
        )
    llm = {
        **cfg.hf_config,
        "vocab_size": vocabulary + ROW_MULTIPLE,
        "pad_token_id": prompts.pad,
        "bos_token_id": prompts.bos,
        "eos_token_id": prompts.eos,
    }
    state_dim = needed(cfg, "obs_dim") if cfg.use_proprio else None
    network = OpenVLANetwork(llm, towers_of(cfg), state_dim, bool(cfg.get("use_film", False)))
    own = {field.name: cfg[field.name] for field in fields(TokenSettings)}
    low, high = (getattr(env_spec, name, None) for name in ("action_low", "action_high"))
    bounds = ActionRange(low, high, clip=True) if low is not None else ActionRange()
    if getattr(env_spec, "action_choices", None) is not None:
        raise ValueError(
            f"{cfg.model_type} acts in real numbers, and the actions of the env are choices; use "
            "mlp_policy or cnn_policy"
        )
    bins = _bins(cfg, env_spec)
    policy = kind(network, bins, prompts, vocabulary, state_dim, TokenSettings(**own), bounds)
    return policy.to(torch_dtype)


def towers_of(cfg: DictConfig) -> list[Tower]:
    """Return the vision towers that a model section describes.

    Raises:
        ValueError: A size is not known, or cameras and towers do not go together.
    """
    known = [field.name for field in fields(Tower)]
    for sizes in cfg.vision_towers:
        for name in sizes:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ValueError(f"model.vision_towers: a tower has no size '{name}'; {hint}")
    if bool(cfg.vision_towers) != bool(cfg.num_images_in_input):
        raise ValueError(
            f"model.num_images_in_input is {cfg.num_images_in_input} and model.vision_towers has "
            f"{len(cfg.vision_towers)} towers: cameras and towers come together"
        )
    return [Tower(**sizes) for sizes in cfg.vision_towers]


def _bins(cfg: DictConfig, env_spec: EnvSpec | None) -> ActionBins:
    if cfg.statistics_path is not None:
        found: Mapping[str, Any] = action_statistics(Path(cfg.statistics_path), cfg.unnorm_key)
        bins = ActionBins(cfg.n_action_bins, found["q01"], found["q99"], found.get("mask"))
        if len(bins.low) != needed(cfg, "action_dim"):
            raise ValueError(
                f"{cfg.statistics_path} has statistics of actions of {len(bins.low)} numbers, and "
                f"the policy acts in {cfg.action_dim}"
            )
        return bins
    low, high = (getattr(env_spec, name, None) for name in ("action_low", "action_high"))
    if low is None or not all(abs(bound) < float("inf") for bound in (*low, *high)):
        raise ValueError(
            "nobody says the range of actions, which bins divide: the env has none that is finite; "
            "name statistics of a dataset in model.statistics_path"
        )
    return ActionBins(cfg.n_action_bins, low, high)
