"""Builds a flow policy, whose noise is drawn or chosen, from its model section."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlinf.models.embodiment.cnn_policy.cnn_policy import ImageSettings
from rlinf.models.embodiment.flow.guidance import RealTimeChunking
from rlinf.models.embodiment.flow.settings import PolicyFlowSettings
from rlinf.models.embodiment.flow.steering import SteeringSettings
from rlinf.models.embodiment.flow_policy.flow_policy import (
    FlowActor,
    ImageFlowPolicy,
    StateFlowPolicy,
)
from rlinf.models.embodiment.flow_policy.settings import FlowHeadSettings
from rlinf.models.embodiment.flow_policy.steering import (
    SteeredFlow,
    SteeredImageFlowPolicy,
    SteeredStateFlowPolicy,
)
from rlinf.models.settings import needed
from rlinf.models.weights import load_weights

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec


def build_flow_policy(
    cfg: DictConfig, torch_dtype: torch.dtype, env_spec: EnvSpec | None = None
) -> FlowActor:
    """Build the policy from its model section.

    Args:
        cfg: The section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says what actions are valid, and the channels of images.

    Returns:
        The policy, with the weights at `model_path` if that is set.

    Raises:
        ValueError: The actions of the env are choices, or keys do not fit one another.
    """
    if cfg.action_choices is not None or getattr(env_spec, "action_choices", None) is not None:
        raise ValueError(
            "flow_policy denoises real numbers, and the actions of the env are choices: use "
            "mlp_policy or cnn_policy"
        )
    settings = FlowHeadSettings(
        hidden_sizes=tuple(cfg.hidden_sizes),
        activation=cfg.activation,
        distribution="gaussian",
        normalize_obs=cfg.normalize_obs,
        obs_clip=cfg.obs_clip,
        num_action_chunks=cfg.num_action_chunks,
        add_value_head=cfg.add_value_head,
        value_type=cfg.value_type,
        flow=PolicyFlowSettings.of(cfg),
        action_horizon=cfg.action_horizon,
        rtc=None if cfg.rtc is None else RealTimeChunking(**cfg.rtc),
        steering=SteeringSettings.of(cfg, cfg.activation),
    )
    obs_dim = needed(cfg, "obs_dim") if cfg.use_states else None
    action_dim = needed(cfg, "action_dim")
    policy: FlowActor
    if cfg.use_images:
        of_images = SteeredImageFlowPolicy if cfg.use_dsrl else ImageFlowPolicy
        policy = of_images(obs_dim, action_dim, settings, ImageSettings.of(cfg), env_spec)
    else:
        of_states = SteeredStateFlowPolicy if cfg.use_dsrl else StateFlowPolicy
        policy = of_states(obs_dim, action_dim, settings, env_spec)
    if isinstance(policy, SteeredFlow):
        policy.freeze_flow()
    policy.to(torch_dtype)
    if cfg.model_path is not None:
        load_weights(policy, cfg.model_path)
    return policy
