"""Builds a token policy from its model section: fresh, or from a folder in the public layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rlinf.config.suggest import did_you_mean, listed
from rlinf.models.embodiment.adapters import add_adapters
from rlinf.models.embodiment.augmentation import CameraAugmentation
from rlinf.models.embodiment.base_policy import ActionRange
from rlinf.models.embodiment.openvla.bins import ActionBins
from rlinf.models.embodiment.openvla.folder import load_folder, read_config, towers_in
from rlinf.models.embodiment.openvla.network import OpenVLANetwork
from rlinf.models.embodiment.openvla.prompts import PromptEncoder, folder_tokenizer, word_tokenizer
from rlinf.models.embodiment.openvla.statistics import (
    STATISTICS_FILE,
    action_statistics,
    of_dataset,
    read_statistics,
)
from rlinf.models.embodiment.openvla.token_policy import TokenPolicy, TokenSettings
from rlinf.models.embodiment.openvla.vision import Tower, is_film
from rlinf.models.settings import needed

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.models.deferred import DeferredWeights
    from rlinf.utils.env_spec import EnvSpec

Policy = TypeVar("Policy", bound=TokenPolicy)

SPARE_ROWS = 64
"""Rows of the embedding behind the vocabulary, as in OpenVLA's files."""

_OF_TRANSFORMERS = ("model_type", "transformers_version", "dtype", "torch_dtype", "architectures")
"""Keys of a `text_config` that say nothing of sizes."""


@dataclass(frozen=True)
class _Plan:
    """What a policy is made of.

    Attributes:
        llm: Sizes of the language model.
        towers: Vision towers.
        vocabulary: Tokens, bins included.
        bins: Number of bins.
        prompts: Makes token ids of instructions.
        statistics: Where statistics of actions are; None if the env says the range.
    """

    llm: Mapping[str, Any]
    towers: Sequence[Tower]
    vocabulary: int
    bins: int
    prompts: PromptEncoder
    statistics: Path | None


def build_token_policy(
    kind: type[Policy],
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None,
    deferral: DeferredWeights | None = None,
) -> Policy:
    """Build a policy.

    Args:
        kind: Its class.
        cfg: Its model section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says the range of actions.
        deferral: What is told where weights come from, instead of loading them; None loads them.

    Returns:
        The policy, with the weights at `model_path` if that is set.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    if getattr(env_spec, "action_choices", None) is not None:
        raise ValueError(
            f"{cfg.model_type} acts in real numbers, and the actions of the env are choices; use "
            "mlp_policy or cnn_policy"
        )
    folder = None if cfg.model_path is None else Path(cfg.model_path).expanduser()
    plan = _fresh(cfg) if folder is None else _of_folder(cfg, folder)
    if bool(plan.towers) != bool(cfg.num_images_in_input):
        raise ValueError(
            f"model.num_images_in_input is {cfg.num_images_in_input}, and there are "
            f"{len(plan.towers)} vision towers: cameras and towers come together"
        )
    # A word that is not known is told now, and not in the first rollout.
    plan.prompts(getattr(env_spec, "instructions", ()))
    state_dim = needed(cfg, "obs_dim") if cfg.use_proprio else None
    network = OpenVLANetwork(plan.llm, plan.towers, state_dim, bool(cfg.get("use_film", False)))
    low, high = (getattr(env_spec, name, None) for name in ("action_low", "action_high"))
    own = {field.name: cfg[field.name] for field in fields(TokenSettings) if field.name in cfg}
    if plan.statistics is not None:
        own["unnorm_key"] = of_dataset(read_statistics(plan.statistics), cfg.unnorm_key)[0]
    policy = kind(
        network,
        _bins(cfg, plan, env_spec),
        plan.prompts,
        plan.vocabulary,
        state_dim,
        TokenSettings(**own, augmentation=CameraAugmentation.of(cfg)),
        ActionRange() if low is None else ActionRange(low, high, clip=True),
    )
    if torch_dtype != torch.float32:
        policy.to(torch_dtype)
    if folder is not None:
        load_folder(policy, folder, cfg.unnorm_key, deferral)
    _freeze(network, cfg)
    if cfg.is_lora:
        add_adapters(network, cfg, deferral)
    return policy


def _freeze(network: OpenVLANetwork, cfg: DictConfig) -> None:
    if cfg.freeze_vision_encoder:
        if network.vision_backbone is None:
            raise ValueError(
                "model.freeze_vision_encoder is true, and there are no vision towers to freeze: "
                "model.num_images_in_input is 0"
            )
        for name, parameter in network.vision_backbone.named_parameters():
            if not is_film(name):
                parameter.requires_grad_(False)
    if cfg.freeze_language_model:
        network.language_model.requires_grad_(False)


def _fresh(cfg: DictConfig) -> _Plan:
    if not cfg.hf_config:
        raise ValueError(
            f"{cfg.model_type} has neither model_path nor hf_config: name a folder with weights, "
            "or give the sizes of a fresh language model in hf_config, such as hidden_size and "
            "num_hidden_layers"
        )
    tokenizer = (
        word_tokenizer(cfg.words)
        if cfg.tokenizer_path is None
        else folder_tokenizer(cfg.tokenizer_path)
    )
    prompts = PromptEncoder(tokenizer, cfg.prompt, cfg.max_prompt_length)
    vocabulary = len(tokenizer) + cfg.n_action_bins
    llm = {
        **cfg.hf_config,
        "vocab_size": vocabulary + SPARE_ROWS,
        "pad_token_id": prompts.pad,
        "bos_token_id": prompts.bos,
        "eos_token_id": prompts.eos,
    }
    statistics = None if cfg.statistics_path is None else Path(cfg.statistics_path)
    towers = [_tower(sizes) for sizes in cfg.vision_towers]
    return _Plan(llm, towers, vocabulary, cfg.n_action_bins, prompts, statistics)


def _of_folder(cfg: DictConfig, folder: Path) -> _Plan:
    config = read_config(folder)
    given = [key for key in ("hf_config", "words", "vision_towers") if cfg[key]]
    if given:
        raise ValueError(
            f"{listed([f'model.{key}' for key in given])} describes a fresh model, but model_path "
            "names a folder that has its own; keep one of the two"
        )
    tokenizer = folder_tokenizer(cfg.tokenizer_path or folder)
    prompts = PromptEncoder(tokenizer, cfg.prompt, cfg.max_prompt_length)
    text = {k: v for k, v in config["text_config"].items() if k not in _OF_TRANSFORMERS}
    statistics = Path(cfg.statistics_path or folder / STATISTICS_FILE)
    return _Plan(
        text,
        towers_in(config),
        text["vocab_size"] - config["pad_to_multiple_of"],
        config["n_action_bins"],
        prompts,
        statistics,
    )


def _tower(sizes: Mapping[str, Any]) -> Tower:
    known = [field.name for field in fields(Tower)]
    for name in sizes:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"model.vision_towers: a tower has no size '{name}'; {hint}")
    return Tower(**sizes)


def _bins(cfg: DictConfig, plan: _Plan, env_spec: EnvSpec | None) -> ActionBins:
    if plan.statistics is not None:
        found = action_statistics(plan.statistics, cfg.unnorm_key)
        bins = ActionBins(plan.bins, found["q01"], found["q99"], found.get("mask"))
        if len(bins.low) != needed(cfg, "action_dim"):
            raise ValueError(
                f"{plan.statistics} has statistics of actions of {len(bins.low)} numbers, and the "
                f"policy acts in {cfg.action_dim}"
            )
        return bins
    low, high = (getattr(env_spec, name, None) for name in ("action_low", "action_high"))
    if low is None or not all(abs(bound) < float("inf") for bound in (*low, *high)):
        raise ValueError(
            "nobody says the range of actions, which bins divide: the env has none that is finite; "
            "name statistics of a dataset in model.statistics_path"
        )
    return ActionBins(plan.bins, low, high)
