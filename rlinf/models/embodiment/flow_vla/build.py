"""Builds a policy from its model section: fresh, or from a folder in a public layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlinf.config.suggest import listed
from rlinf.models.embodiment.adapters import add_adapters
from rlinf.models.embodiment.augmentation import CameraAugmentation
from rlinf.models.embodiment.base_policy import ActionRange
from rlinf.models.embodiment.flow.guidance import RealTimeChunking
from rlinf.models.embodiment.flow.settings import PolicyFlowSettings
from rlinf.models.embodiment.flow.steering import SteeringSettings
from rlinf.models.embodiment.flow_vla.folder import (
    SIZES_KEY,
    load_folder,
    read_config,
    vocabulary_in,
    weights_in,
)
from rlinf.models.embodiment.flow_vla.layouts import LAYOUTS, PI05, SMOLVLA, Layout
from rlinf.models.embodiment.flow_vla.policy import FlowVLAPolicy, FlowVLASettings
from rlinf.models.embodiment.flow_vla.prompts import PI05_WORDS, Prompts
from rlinf.models.embodiment.flow_vla.scaling import ActionScale, Affine, affine, of_range
from rlinf.models.embodiment.flow_vla.sizes import changed
from rlinf.models.embodiment.flow_vla.statistics import Statistics, statistics_at, statistics_in
from rlinf.models.embodiment.flow_vla.steering import SteeredVLA
from rlinf.models.embodiment.openvla.prompts import folder_tokenizer, word_tokenizer
from rlinf.models.settings import needed

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.models.deferred import DeferredWeights
    from rlinf.models.embodiment.flow_vla.network import ExpertNetwork
    from rlinf.models.tensor_files import TensorSource
    from rlinf.utils.env_spec import EnvSpec


_SHORT_PROMPT, _LONG_PROMPT = 48, 200
"""Tokens of a prompt, as the published models have them: without the state, and with it."""


@dataclass(frozen=True)
class Plan:
    """What a policy is made of.

    Attributes:
        sizes: Of the network.
        tokenizer: Of instructions.
        horizon: Actions that are denoised together.
        statistics: Of states and actions; None if the env says the range of actions.
        modes: How `state` and `action` are normalised by them.
        source: The weights; None begins with fresh ones.
    """

    sizes: Any
    tokenizer: Any
    horizon: int
    statistics: Statistics | None
    modes: dict[str, str]
    source: TensorSource | None = None


def build_smolvla(
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None = None,
    deferral: DeferredWeights | None = None,
) -> FlowVLAPolicy:
    """Build SmolVLA from its model section; see `build_flow_vla`."""
    return build_flow_vla(SMOLVLA, cfg, torch_dtype, env_spec, deferral)


def build_openpi(
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None = None,
    deferral: DeferredWeights | None = None,
) -> FlowVLAPolicy:
    """Build pi0 or pi0.5 from their model section; see `build_flow_vla`."""
    layout = LAYOUTS[cfg.variant]
    reads_state = layout is PI05 and cfg.discrete_state_input
    return build_flow_vla(layout, cfg, torch_dtype, env_spec, deferral, reads_state)


def build_flow_vla(
    layout: Layout,
    cfg: DictConfig,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None,
    deferral: DeferredWeights | None = None,
    reads_state: bool = False,
) -> FlowVLAPolicy:
    """Build a policy.

    Args:
        layout: Which model it is.
        cfg: Its model section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says the range of actions.
        deferral: What is told where weights come from, instead of loading them; None loads them.
        reads_state: The prompt holds the state.

    Returns:
        The policy, with the weights at `model_path` if that is set.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    refuse_choices(cfg, env_spec)
    folder = None if cfg.model_path is None else Path(cfg.model_path).expanduser()
    if folder is None:
        plan = fresh_plan(cfg, layout, fresh_tokenizer(cfg, PI05_WORDS if reads_state else ()))
    else:
        plan = _of_folder(cfg, layout, folder)
    length = cfg.max_prompt_length or (_LONG_PROMPT if reads_state else _SHORT_PROMPT)
    prompts = Prompts(plan.tokenizer, layout.style, length, layout.begins)
    network = layout.network(plan.sizes)
    policy = assemble(cfg, layout, plan, network, prompts, torch_dtype, env_spec, reads_state)
    if plan.source is not None:
        load_folder(policy, folder, plan.source, deferral)
    if cfg.is_lora:
        add_adapters(policy.network, cfg, deferral)
    return policy


def refuse_choices(cfg: DictConfig, env_spec: EnvSpec | None) -> None:
    """See to it that actions are numbers.

    Raises:
        ValueError: They are choices.
    """
    if cfg.action_choices is not None or getattr(env_spec, "action_choices", None) is not None:
        raise ValueError(
            f"{cfg.model_type} denoises real numbers, and the actions of the env are choices: use "
            "mlp_policy or cnn_policy"
        )


def assemble(
    cfg: DictConfig,
    layout: Layout,
    plan: Plan,
    network: ExpertNetwork,
    prompts: Prompts,
    torch_dtype: torch.dtype,
    env_spec: EnvSpec | None,
    reads_state: bool = False,
) -> FlowVLAPolicy:
    """Put a policy together; its network keeps the weights that it has.

    Args:
        cfg: The model section, with sizes filled in.
        layout: Which model it is.
        plan: What it is made of.
        network: Of the plan's sizes.
        prompts: Made with the plan's tokenizer.
        torch_dtype: Number format of the weights.
        env_spec: Says the range of actions.
        reads_state: The prompt holds the state.

    Raises:
        ValueError: Something is missing, or does not fit.
    """
    obs_dim = needed(cfg, "obs_dim")
    # A word that is not known is told now, and not in the first rollout.
    texts = getattr(env_spec, "instructions", ())
    prompts(texts, torch.zeros(len(texts), obs_dim) if reads_state else None)
    own = {field.name: cfg[field.name] for field in fields(FlowVLASettings) if field.name in cfg}
    rtc = None if cfg.rtc is None else RealTimeChunking(**cfg.rtc)
    own |= {"action_horizon": plan.horizon, "flow": PolicyFlowSettings.of(cfg), "rtc": rtc}
    settings = FlowVLASettings(**own, augmentation=CameraAugmentation.of(cfg))
    low, high = (getattr(env_spec, name, None) for name in ("action_low", "action_high"))
    steering = SteeringSettings.of(cfg)
    policy = (FlowVLAPolicy if steering is None else SteeredVLA)(
        layout,
        network,
        ActionScale(_action_map(cfg, plan, low, high)),
        prompts,
        obs_dim,
        settings,
        reads_state,
        ActionRange() if low is None else ActionRange(low, high, clip=True),
    )
    if isinstance(policy, SteeredVLA):
        policy.add_steering(steering, cfg.steering_image_size)
    if torch_dtype != torch.float32:
        policy.to(torch_dtype)
    _freeze(policy, cfg)
    if plan.statistics is not None and policy.normalizer is not None:
        shift, spread = _map(plan, "state", obs_dim)
        policy.normalizer.shift.copy_(shift)
        policy.normalizer.scale.copy_(1.0 / spread)
        # They were counted already: what is learned from next does not change them.
        policy.normalizer.count.fill_(1)
    return policy


def fresh_tokenizer(cfg: DictConfig, own_words: Sequence[str] = ()) -> Any:
    """Return the tokenizer of a fresh model.

    Args:
        cfg: The model section.
        own_words: Words of the prompt besides those of the instruction.
    """
    if cfg.tokenizer_path is not None:
        return folder_tokenizer(cfg.tokenizer_path)
    return word_tokenizer(list(dict.fromkeys([*cfg.words, *own_words])) if cfg.words else [])


def fresh_plan(cfg: DictConfig, layout: Layout, tokenizer: Any) -> Plan:
    """Return what a fresh model is made of.

    Args:
        cfg: The model section.
        layout: Which model it is.
        tokenizer: Its tokenizer.

    Raises:
        ValueError: Sizes are missing, or there is no such size.
    """
    if not cfg.hf_config:
        raise ValueError(
            f"{cfg.model_type} has neither model_path nor hf_config: name a folder with weights, "
            "or give sizes of a fresh network in hf_config"
        )
    sizes = changed(layout.sizes(vocab_size=len(tokenizer)), cfg.hf_config, "model.hf_config")
    statistics = None
    if cfg.statistics_path is not None:
        statistics = statistics_at(Path(cfg.statistics_path), cfg.unnorm_key)
    modes = {"state": layout.mode, "action": layout.mode}
    horizon = cfg.action_horizon or cfg.num_action_chunks
    return Plan(sizes, tokenizer, horizon, statistics, modes)


def tokenizer_beside(cfg: DictConfig, folder: Path) -> Any:
    """Return the tokenizer of a model that comes from a folder.

    Args:
        cfg: The model section.
        folder: The folder.

    Raises:
        ValueError: There is none, or the section describes a fresh model, too.
    """
    given = [key for key in ("hf_config", "words") if cfg[key]]
    if given:
        raise ValueError(
            f"{listed([f'model.{key}' for key in given])} describes a fresh model, but model_path "
            "names a folder that has its own; keep one of the two"
        )
    path = Path(cfg.tokenizer_path or folder).expanduser()
    if not (path / "tokenizer_config.json").is_file() and not (path / "tokenizer.json").is_file():
        raise ValueError(
            f"{path} has no tokenizer; published models do not bring theirs: name a folder with it "
            "in model.tokenizer_path"
        )
    return folder_tokenizer(path)


def _of_folder(cfg: DictConfig, layout: Layout, folder: Path) -> Plan:
    config, source = read_config(folder, layout), weights_in(folder)
    tokenizer = tokenizer_beside(cfg, folder)
    if SIZES_KEY in config:
        sizes = changed(layout.sizes(), config[SIZES_KEY], f"{folder}/config.json")
    else:
        sizes = layout.sizes.of_config(config)
    modes = {"state": layout.mode, "action": layout.mode}
    if cfg.statistics_path is not None:
        statistics = statistics_at(Path(cfg.statistics_path), cfg.unnorm_key)
    else:
        statistics = statistics_in(folder, cfg.unnorm_key)
        for which in modes:
            mapping = config.get("normalization_mapping", {})
            modes[which] = mapping.get(which.upper(), modes[which])
    if statistics is None:
        raise ValueError(
            f"{folder} has no statistics of states and actions: name a file of them in "
            "model.statistics_path"
        )
    horizon = cfg.action_horizon or config.get("chunk_size") or config.get("action_horizon")
    return Plan(
        replace(sizes, vocab_size=vocabulary_in(source, layout)),
        tokenizer,
        horizon or cfg.num_action_chunks,
        statistics,
        modes,
        source,
    )


def _action_map(cfg: DictConfig, plan: Plan, low: Any, high: Any) -> Affine:
    if plan.statistics is not None:
        return _map(plan, "action", needed(cfg, "action_dim"))
    if low is None or not all(abs(bound) < float("inf") for bound in (*low, *high)):
        raise ValueError(
            "nobody says the range of actions: the env has none that is finite; name statistics "
            "of a dataset in model.statistics_path"
        )
    return of_range(low, high)


def _map(plan: Plan, which: str, count: int) -> Affine:
    return affine(plan.statistics[which], plan.modes[which], count, f"statistics of {which}s")


def _freeze(policy: FlowVLAPolicy, cfg: DictConfig) -> None:
    if isinstance(policy, SteeredVLA):
        policy.freeze_flow()
        return
    network = policy.network
    frozen = network.prefix_parts if cfg.train_expert_only else ()
    frozen += network.vision_parts if cfg.freeze_vision_encoder else ()
    for path in frozen:
        network.get_submodule(path).requires_grad_(False)
