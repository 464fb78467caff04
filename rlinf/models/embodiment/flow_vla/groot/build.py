"""Builds GR00T from its model section: fresh, or from a folder in the public layout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf.models.embodiment.adapters import add_adapters
from rlinf.models.embodiment.flow_vla.build import (
    Plan,
    assemble,
    fresh_plan,
    fresh_tokenizer,
    refuse_choices,
    tokenizer_beside,
)
from rlinf.models.embodiment.flow_vla.folder import load_folder, vocabulary_in, weights_in
from rlinf.models.embodiment.flow_vla.groot.folder import LEROBOT_PREFIX, read_config, sizes_in
from rlinf.models.embodiment.flow_vla.groot.metadata import METADATA_FILE, read_metadata
from rlinf.models.embodiment.flow_vla.groot.network import GrootNetwork
from rlinf.models.embodiment.flow_vla.groot.prompts import (
    CHAT_TOKENS,
    CHAT_WORDS,
    groot_prompt,
    image_token,
)
from rlinf.models.embodiment.flow_vla.groot.sizes import GrootSizes
from rlinf.models.embodiment.flow_vla.layouts import Layout
from rlinf.models.embodiment.flow_vla.prompts import Prompts
from rlinf.models.embodiment.flow_vla.scaling import MIN_MAX
from rlinf.models.embodiment.flow_vla.statistics import statistics_at

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

    from rlinf.models.deferred import DeferredWeights
    from rlinf.models.embodiment.flow_vla.policy import FlowVLAPolicy
    from rlinf.utils.env_spec import EnvSpec

GROOT = Layout("gr00t", GrootNetwork, GrootSizes, groot_prompt, False, MIN_MAX)


def build_groot(
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None = None,
    deferral: DeferredWeights | None = None,
) -> FlowVLAPolicy:
    """Build GR00T N1.5.

    Args:
        cfg: Its model section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says the range of actions.
        deferral: What is told where weights come from, instead of loading them; None loads them.

    Returns:
        The policy, with the weights at `model_path` if that is set.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    refuse_choices(cfg, env_spec)
    folder = None if cfg.model_path is None else Path(cfg.model_path).expanduser()
    plan = _fresh(cfg) if folder is None else _of_folder(cfg, folder)
    sizes = replace(plan.sizes, image_token=image_token(plan.tokenizer))
    images, places = cfg.num_images_in_input, sizes.image_places
    style = partial(groot_prompt, images=images, places=places, listed=cfg.listed_instruction)
    length = cfg.max_prompt_length + images * places
    prompts = Prompts(plan.tokenizer, style, length, left=True)
    network = GrootNetwork(sizes, cfg.embodiment_tag)
    policy = assemble(cfg, GROOT, plan, network, prompts, torch_dtype, env_spec)
    if plan.source is not None:
        load_folder(policy, folder, plan.source, deferral, LEROBOT_PREFIX)
    if cfg.is_lora:
        add_adapters(policy.network, cfg, deferral)
    return policy


def _fresh(cfg: DictConfig) -> Plan:
    tokenizer = fresh_tokenizer(cfg, CHAT_WORDS)
    if cfg.tokenizer_path is None:
        tokenizer.add_tokens(list(CHAT_TOKENS), special_tokens=True)
    return fresh_plan(cfg, GROOT, tokenizer)


def _of_folder(cfg: DictConfig, folder: Path) -> Plan:
    config, source = read_config(folder), weights_in(folder)
    tokenizer = tokenizer_beside(cfg, folder)
    if cfg.statistics_path is not None:
        statistics = statistics_at(Path(cfg.statistics_path), cfg.unnorm_key)
    else:
        keys = {"state": cfg.state_keys, "action": cfg.action_keys}
        statistics = read_metadata(folder, cfg.embodiment_tag, keys)
    if statistics is None:
        raise ValueError(
            f"{folder} has no statistics of states and actions in {METADATA_FILE}: name a file of "
            "them in model.statistics_path"
        )
    vocabulary = vocabulary_in(source, GROOT, LEROBOT_PREFIX)
    sizes = replace(sizes_in(config, f"{folder}/config.json"), vocab_size=vocabulary)
    horizon = cfg.action_horizon or config.get("action_horizon") or config.get("chunk_size")
    modes = {"state": MIN_MAX, "action": MIN_MAX}
    return Plan(sizes, tokenizer, horizon or cfg.num_action_chunks, statistics, modes, source)
