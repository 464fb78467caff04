"""Small flow policy: a chunk of actions is denoised, step by step, from features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlinf.models.embodiment.actor_critic_policy import ActorCriticPolicy
from rlinf.models.embodiment.base_policy import ForwardType, Mode
from rlinf.models.embodiment.cnn_policy.cnn_policy import CNNPolicy
from rlinf.models.embodiment.flow.chain import (
    FlowNetwork,
    chain_log_probs,
    noisy_step_numbers,
    sample_chain,
)
from rlinf.models.embodiment.flow.current_inputs import current_inputs, named_current
from rlinf.models.embodiment.flow.matching import drawn_times, matching_losses
from rlinf.models.embodiment.flow.network import NoiseNet, VelocityNet
from rlinf.models.embodiment.flow.steps import LEARNED, REINFLOW
from rlinf.models.embodiment.flow.windows import carried_out
from rlinf.models.embodiment.flow_policy.settings import FlowHeadSettings
from rlinf.models.embodiment.layers import MLP, VALUE_GAIN
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy


class FlowActor(ActorCriticPolicy):
    """Denoises plans of H actions; a subclass says what becomes of observations.

    C actions of a plan are carried out, the first ones unless others were decided before it was
    made, and log-probabilities are those of their numbers alone. The flow is in actions that are
    scaled to [-1, 1] by the env's range. What it gives is clipped to that range after its
    log-probability is taken.

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

    forward_types: ClassVar[tuple[ForwardType, ...]] = (
        ForwardType.DEFAULT,
        ForwardType.SFT,
        ForwardType.NFT,
    )
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
    def action_horizon(self) -> int:
        """See `BasePolicy.action_horizon`."""
        return self.settings.horizon

    @property
    def carries_plan(self) -> bool:
        """See `BasePolicy.carries_plan`: with real-time chunking."""
        return self.settings.rtc is not None

    @property
    def decided_in_rollouts(self) -> int:
        """See `BasePolicy.decided_in_rollouts`."""
        return 0 if self.settings.rtc is None else self.settings.rtc.decided_in_rollouts

    @property
    def _width(self) -> int:
        """Numbers of a plan, H*A."""
        return self.action_horizon * self.action_dim

    @property
    def _executed(self) -> int:
        """Numbers of a plan that are carried out, C*A."""
        return self.num_action_chunks * self.action_dim

    @property
    def noise_width(self) -> int:
        """See `BasePolicy.noise_width`."""
        return (1 + self.flow.drawn_steps) * self._width + 1

    @property
    def sft_noise_width(self) -> int:
        """See `BasePolicy.sft_noise_width`.

        That is noise of a plan, what its time is drawn from, and what pictures are shifted by.
        """
        return self._width + 1 + super().sft_noise_width

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
            current = current_inputs(forward_inputs)
            values = self._values(features if current is None else self._trunk(current))
        decided = forward_inputs.get("decided")
        return {
            "logprobs": self._own(logprobs, decided) if compute_logprobs else None,
            "entropy": self._own(entropy, decided) if compute_entropy else None,
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
            actions: What was done, in the units of the env, [n, H, A].
            augment: Draw random augmentations, where the policy has them.
            noise: Standard normal, [n, sft_noise_width]; None draws it from the generator.

        Returns:
            `losses` [n, H*A] float32; see `matching_losses`.
        """
        if noise is None:
            noise = self._draw(len(actions), self.sft_noise_width)
        noise, of_pictures = noise[:, : self._width + 1], noise[:, self._width + 1 :]
        features = self._trunk(self.sft_inputs(observations, augment, of_pictures))
        time = drawn_times(torch.special.ndtr(noise[:, -1]), self.flow.time_alpha)
        scaled = self.action_head.scaled(actions.to(self.device).float())
        return {"losses": matching_losses(self._network(features), scaled, noise[:, :-1], time)}

    def nft_forward(self, forward_inputs: Mapping[str, Tensor], x: Tensor, time: Tensor) -> Tensor:
        """See `BasePolicy.nft_forward`."""
        features = self._trunk(forward_inputs).repeat_interleave(x.shape[1], 0)
        velocity = self.velocity(features, x.flatten(0, 1), time.flatten())
        return velocity.float().unflatten(0, x.shape[:2])

    def within_range(self, plans: Tensor) -> Tensor:
        """See `BasePolicy.within_range`."""
        return self.action_head.scaled(self.action_head.from_scaled(plans))

    def executed(self, plans: Tensor) -> Tensor:
        """See `BasePolicy.executed`."""
        return plans[..., : self._executed].unflatten(-1, (-1, self.action_dim))

    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: Mode = "train",
        noise: Tensor | None = None,
        plan: Tensor | None = None,
        decided: Tensor | None = None,
        now: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """See `BasePolicy.predict_action_batch`.

        Args:
            env_obs: Observations.
            mode: `train` begins with noise and adds some; `eval` does neither.
            noise: Standard normal, [B, noise_width]; None draws it from the policy's generator.
            plan: With `rtc` in evaluations, what the last call returned as `plan` for the same
                episodes, [B, H, A]; NaN where there is none. None is none at all.
            decided: In rollouts, how many actions of each plan are not its own, int64 [B]; None is
                none.
            now: In rollouts, what is observed when its own actions begin, whose value is returned;
                None is `env_obs`.
            **sampling: None are known.

        Returns:
            Actions and what is needed to train on them: `chain` [B, N + 1, H*A] from noise to
            plan, and `denoise_step` [B], which of its steps has noise. `plan` [B, H, A] has the
            actions, and those that were to follow.
        """
        self._check_call(mode, sampling)
        if mode == "random":
            raise ValueError("flow_policy draws no uniform actions: set algorithm.random_steps: 0")
        inputs = self.policy_inputs(env_obs, augment=mode == "train")
        features = self._trunk(inputs)
        network, count, width = self._network(features), len(features), self._width
        if mode == "eval":
            if plan is not None:
                network = self._going_on(network, plan)
            chain = sample_chain(network, self.flow, torch.zeros(count, width, device=self.device))
        else:
            if noise is None:
                noise = self._draw(count, self.noise_width)
            start, added, chance = noise.split([width, noise.shape[1] - width - 1, 1], dim=1)
            step = noisy_step_numbers(self.flow, torch.special.ndtr(chance[:, 0]))
            added = added.reshape(count, self.flow.drawn_steps, width)
            chain = sample_chain(network, self.flow, start, added, step)
        action = self._own(chain.states[:, -1], decided)
        inputs |= {"action": action, "chain": chain.states, "denoise_step": chain.noisy}
        if decided is not None:
            inputs["decided"] = decided
        planned = self.action_head.from_scaled(chain.states[:, -1])
        if plan is not None:
            self.settings.rtc.keep_decided(planned, plan, self.num_action_chunks)
        if now is not None and self.value_head is not None:
            current = self.policy_inputs(now, augment=mode == "train")
            features = self._trunk(current)
            inputs |= named_current(current)
        result = {
            "prev_logprobs": self._own(chain.logprobs, decided),
            "prev_values": self._values(features),
            "forward_inputs": inputs,
            "plan": planned,
        }
        return carried_out(planned, self.num_action_chunks, decided).contiguous(), result

    def _own(self, numbers: Tensor, decided: Tensor | None) -> Tensor:
        """Return of the numbers of plans, [n, H*A], those that are carried out, [n, C*A]."""
        plans = numbers.unflatten(1, (-1, self.action_dim))
        return carried_out(plans, self.num_action_chunks, decided).flatten(1)

    def _going_on(self, network: FlowNetwork, plan: Tensor) -> FlowNetwork:
        """Return a network that leads to plans which agree with the last ones."""
        last = self.action_head.scaled(plan.to(self.device)).view_as(plan)
        return self.settings.rtc.going_on(network, last, self.num_action_chunks, self.action_dim)

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
