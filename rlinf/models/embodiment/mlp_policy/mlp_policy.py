"""Policy on state vectors: normalised states, one network for actions, one for values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf.models.embodiment.actor_critic_policy import ActorCriticPolicy
from rlinf.models.embodiment.base_policy import Mode
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.settings import needed
from rlinf.models.weights import load_weights

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec


class MLPPolicy(ActorCriticPolicy):
    """Acts on `states` [B, S]."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        settings: HeadSettings | None = None,
        env_spec: EnvSpec | None = None,
    ) -> None:
        """Make the networks.

        Args:
            obs_dim: S, numbers in an observation.
            action_dim: A, numbers in one action.
            settings: See `HeadSettings`.
            env_spec: Says the range of actions or the number of choices; None is unbounded.
        """
        super().__init__(obs_dim, obs_dim, action_dim, settings or HeadSettings(), env_spec)
        self.obs_dim = obs_dim

    def policy_inputs(self, env_obs: Mapping[str, Any], augment: bool) -> dict[str, Tensor]:
        """See `ActorCriticPolicy.policy_inputs`: the raw states."""
        return {"states": self._states(env_obs, self.obs_dim)}

    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: Mode = "train",
        noise: Tensor | None = None,
        compute_logprobs: bool = True,
        compute_values: bool = True,
        **sampling: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """See `ActorCriticPolicy.predict_action_batch`.

        Args:
            env_obs: Observations.
            mode: As there.
            noise: As there.
            compute_logprobs: False returns `distribution` in place of `prev_logprobs`, which
                those of many steps give in little more time than that of one.
            compute_values: False leaves out `prev_values`, which `default_forward` computes for
                many steps in little more time than for one.
            **sampling: None are known.

        Returns:
            Actions and what is needed to train on them.
        """
        self._check_call(mode, sampling)
        inputs = self.policy_inputs(env_obs, augment=False)
        features = self._trunk(inputs)
        return self._act(features, inputs, mode, noise, compute_logprobs, compute_values)

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `ActorCriticPolicy.features`: the normalised states, [n, S]."""
        states = inputs["states"]
        return states if self.normalizer is None else self.normalizer(states)


def build_mlp_policy(
    cfg: DictConfig, torch_dtype: torch.dtype, env_spec: EnvSpec | None = None
) -> MLPPolicy:
    """Build the policy from its model section.

    Args:
        cfg: The section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says what actions are valid.

    Returns:
        The policy, with the weights at `model_path` if that is set.
    """
    settings = HeadSettings.of(cfg)
    policy = MLPPolicy(needed(cfg, "obs_dim"), needed(cfg, "action_dim"), settings, env_spec)
    policy.to(torch_dtype)
    if cfg.model_path is not None:
        load_weights(policy, cfg.model_path)
    return policy
