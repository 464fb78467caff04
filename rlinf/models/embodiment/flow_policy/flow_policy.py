"""Small flow policy: a chunk of actions is denoised, step by step, from features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rlinf.models.embodiment.actor_critic_policy import ActorCriticPolicy
from rlinf.models.embodiment.base_policy import ForwardType, Mode
from rlinf.models.embodiment.cnn_policy.cnn_policy import CNNPolicy, ImageSettings
from rlinf.models.embodiment.flow.chain import (
    FlowNetwork,
    chain_log_probs,
    noisy_step_numbers,
    sample_chain,
)
from rlinf.models.embodiment.flow.matching import drawn_times, matching_losses
from rlinf.models.embodiment.flow.network import NoiseNet, VelocityNet
from rlinf.models.embodiment.flow.settings import PolicyFlowSettings
from rlinf.models.embodiment.flow.steps import LEARNED, REINFLOW
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.embodiment.layers import MLP, VALUE_GAIN
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy
from rlinf.models.settings import needed
from rlinf.models.weights import load_weights

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec


@dataclass(frozen=True)
class FlowHeadSettings(HeadSettings):
    """How actions are denoised and values come from features."""

    flow: PolicyFlowSettings = field(default_factory=PolicyFlowSettings)


class FlowActor(ActorCriticPolicy):
    """Denoises chunks of actions; a subclass says what becomes of observations.

    The flow is in actions that are scaled to [-1, 1] by the env's range. What it gives is clipped
    to that range after its log-probability is taken.

    Sampling takes noise `[B, noise_width]`: where the chain begins, what is added in its steps, and
    a number that chooses the step where only one has noise. So a chunk depends on the seed, the
    env and the step alone. Evaluations begin at zero, the mode of the noise, and add none.

    Statistics that normalise observations are those of the first batch that the policy learns
    from, its demonstrations as a rule: others would make it another policy.

    Attributes:
        flow: How it denoises.
        velocity: Network of the velocity.
        noise_net: Network of the deviation, where the method learns it; else None.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (ForwardType.DEFAULT, ForwardType.SFT)
    keeps_first_statistics: ClassVar[bool] = True
    _no_split_modules: ClassVar[list[str]] = ["ConvEncoder", "MLP"]

    settings: FlowHeadSettings

    def _make_heads(self, feature_dim: int) -> None:
        """Make the networks of the flow, and the value head."""
        own, hidden = self.settings, tuple(self.settings.hidden_sizes)
        self.flow = flow = own.flow
        self.q_head = self.trunk = self.policy_head = self.log_std = None
        self.value_head = self.noise_net = None
        self.velocity = VelocityNet(feature_dim, self._width, hidden, own.activation)
        if flow.noise_method in LEARNED:
            self.noise_net = NoiseNet(
                feature_dim,
                self._width,
                hidden,
                own.activation,
                (flow.noise_std_min, flow.noise_std_max),
                sees_x=flow.noise_method != REINFLOW,
            )
        if own.add_value_head:
            self.value_head = MLP(feature_dim, hidden, self.value_dim, own.activation, VALUE_GAIN)

    @property
    def _width(self) -> int:
        return self.num_action_chunks * self.action_dim

    @property
    def noise_width(self) -> int:
        """See `BasePolicy.noise_width`."""
        return (1 + self.flow.drawn_steps) * self._width + 1

    @property
    def sft_noise_width(self) -> int:
        """See `BasePolicy.sft_noise_width`: noise of an action, and what its time is drawn from."""
        return self._width + 1

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`: of the steps that have noise in the stored chain."""
        features = self._trunk(forward_inputs)
        logprobs = entropy = values = None
        if compute_logprobs or compute_entropy:
            logprobs, entropy = chain_log_probs(
                self._network(features),
                self.flow,
                forward_inputs["chain"],
                forward_inputs["denoise_step"],
                entropy=compute_entropy,
            )
        if compute_values:
            values = self._values(features)
        return {
            "logprobs": logprobs if compute_logprobs else None,
            "entropy": entropy,
            "values": values,
        }

    def sft_forward(
        self,
        observations: Mapping[str, Any],
        actions: Tensor,
        augment: bool = True,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Compare velocities with those that lead to given actions.

        Args:
            observations: As in `predict_action_batch`, any number n of samples.
            actions: What was done, in the units of the env, [n, C, A].
            augment: Draw random augmentations, where the policy has them.
            noise: Standard normal, [n, sft_noise_width]; None draws it from the generator.

        Returns:
            `losses` [n, C*A] float32; see `matching_losses`.
        """
        features = self._trunk(self.policy_inputs(observations, augment=augment))
        if noise is None:
            noise = self._draw(len(features), self.sft_noise_width)
        time = drawn_times(torch.special.ndtr(noise[:, -1]), self.flow.time_alpha)
        scaled = self.action_head.scaled(actions.to(self.device).float())
        return {"losses": matching_losses(self._network(features), scaled, noise[:, :-1], time)}

    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: Mode = "train",
        noise: Tensor | None = None,
        **sampling: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """See `BasePolicy.predict_action_batch`.

        Args:
            env_obs: Observations.
            mode: `train` begins with noise and adds some; `eval` does neither.
            noise: Standard normal, [B, noise_width]; None draws it from the policy's generator.
            **sampling: None are known.

        Returns:
            Actions and what is needed to train on them: `chain` [B, N + 1, C*A] from noise to
            action, and `denoise_step` [B], which of its steps has noise.
        """
        self._check_call(mode, sampling)
        if mode == "random":
            raise ValueError("flow_policy draws no uniform actions: set algorithm.random_steps: 0")
        inputs = self.policy_inputs(env_obs, augment=mode == "train")
        features = self._trunk(inputs)
        network, count, width = self._network(features), len(features), self._width
        if mode == "eval":
            chain = sample_chain(network, self.flow, torch.zeros(count, width, device=self.device))
        else:
            if noise is None:
                noise = self._draw(count, self.noise_width)
            start, added, chance = noise.split([width, noise.shape[1] - width - 1, 1], dim=1)
            step = noisy_step_numbers(self.flow, torch.special.ndtr(chance[:, 0]))
            added = added.reshape(count, self.flow.drawn_steps, width)
            chain = sample_chain(network, self.flow, start, added, step)
        action = chain.states[:, -1].contiguous()
        inputs |= {"action": action, "chain": chain.states, "denoise_step": chain.noisy}
        result = {
            "prev_logprobs": chain.logprobs,
            "prev_values": self._values(features),
            "forward_inputs": inputs,
        }
        return self.action_head.from_scaled(action), result

    @staticmethod
    def is_noise_parameter(name: str) -> bool:
        """Return whether a weight belongs to the learned noise alone, which demonstrations lack.

        Args:
            name: As in `named_parameters`.
        """
        return name.startswith("noise_net.")

    def _network(self, features: Tensor) -> FlowNetwork:
        def network(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
            std = None if self.noise_net is None else self.noise_net(features, x, time)
            return self.velocity(features, x, time), std

        return network

    def _draw(self, count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=self.generator, device=self.device)


class StateFlowPolicy(FlowActor, MLPPolicy):
    """Acts on `states` [B, S]."""


class ImageFlowPolicy(FlowActor, CNNPolicy):
    """Acts on images [B, H, W, C] uint8 and, if there are any, `states` [B, S]."""


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
        ValueError: The actions of the env are choices, or Q-functions are asked for.
    """
    if cfg.action_choices is not None or getattr(env_spec, "action_choices", None) is not None:
        raise ValueError(
            "flow_policy denoises real numbers, and the actions of the env are choices: use "
            "mlp_policy or cnn_policy"
        )
    if cfg.add_q_head:
        raise ValueError("flow_policy has no Q-functions: set actor.model.add_q_head to false")
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
    )
    obs_dim = needed(cfg, "obs_dim") if cfg.use_states else None
    action_dim = needed(cfg, "action_dim")
    policy: FlowActor
    if cfg.use_images:
        policy = ImageFlowPolicy(obs_dim, action_dim, settings, ImageSettings.of(cfg), env_spec)
    else:
        policy = StateFlowPolicy(obs_dim, action_dim, settings, env_spec)
    policy.to(torch_dtype)
    if cfg.model_path is not None:
        load_weights(policy, cfg.model_path)
    return policy
