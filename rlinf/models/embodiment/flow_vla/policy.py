"""Flow policies with a vision-language prefix: inputs, chains, values, and how they learn.

Shapes: B envs, n samples, C actions that are done, A numbers in an action, H actions that are
denoised together, D numbers in a padded action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.models.embodiment.augmentation import CameraAugmentation
from rlinf.models.embodiment.base_policy import ActionRange, BasePolicy, ForwardType, Mode
from rlinf.models.embodiment.cameras import camera_views
from rlinf.models.embodiment.flow.chain import (
    FlowNetwork,
    chain_log_probs,
    noisy_step_numbers,
    sample_chain,
)
from rlinf.models.embodiment.flow.current_inputs import current_inputs, named_current
from rlinf.models.embodiment.flow.guidance import RealTimeChunking
from rlinf.models.embodiment.flow.matching import drawn_times, matching_losses
from rlinf.models.embodiment.flow.network import NoiseNet
from rlinf.models.embodiment.flow.settings import PolicyFlowSettings
from rlinf.models.embodiment.flow.steps import LEARNED, REINFLOW
from rlinf.models.embodiment.flow.windows import carried_out
from rlinf.models.embodiment.flow_vla.layouts import Layout
from rlinf.models.embodiment.flow_vla.network import Encoded, ExpertNetwork
from rlinf.models.embodiment.flow_vla.prompts import Prompts
from rlinf.models.embodiment.flow_vla.scaling import ActionScale
from rlinf.models.embodiment.layers import MLP
from rlinf.models.embodiment.normalizer import NormalizedStates, ObsNormalizer


@dataclass(frozen=True)
class FlowVLASettings:
    """How actions are denoised and values come to be; the config keys of the same names."""

    num_action_chunks: int = 1
    action_horizon: int = 1
    num_images_in_input: int = 1
    add_value_head: bool = False
    value_type: str = "chunk_level"
    value_source: str = "prefix"
    value_hidden_sizes: Sequence[int] = (256,)
    noise_hidden_sizes: Sequence[int] = (256,)
    detach_critic_input: bool = False
    normalize_obs: bool = True
    obs_clip: float = 10.0
    augmentation: CameraAugmentation = field(default_factory=CameraAugmentation)
    flow: PolicyFlowSettings = field(default_factory=PolicyFlowSettings)
    rtc: RealTimeChunking | None = None


class FlowVLAPolicy(NormalizedStates, BasePolicy):
    """Denoises padded chunks of actions; the prefix of an observation is computed once.

    All H actions and D numbers are denoised, and C and A of them are done: only they have a
    log-probability. They are the first ones, but for actions that were decided before. Actions are
    clipped to the range of the env after it is taken.

    Sampling takes noise as `flow_policy` does: where the chain begins, what is added in its steps,
    and a number that chooses the step where only one has noise. Evaluations begin at zero.

    Attributes:
        layout: Which model it is.
        network: Prefix and expert.
        scale: Between actions of the env and of the flow.
        prompts: Makes token ids of instructions.
        noise_net: Network of the deviation, where the method learns it; else None.
        value_dim: Numbers that are the value of an observation.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (
        ForwardType.DEFAULT,
        ForwardType.SFT,
        ForwardType.NFT,
    )
    _no_split_modules: ClassVar[list[str]] = [
        "DecoderLayer",
        "SmolVLMEncoderLayer",
        "SiglipEncoderLayer",
        "TransformerBlock",
    ]

    def __init__(
        self,
        layout: Layout,
        network: ExpertNetwork,
        scale: ActionScale,
        prompts: Prompts,
        obs_dim: int,
        settings: FlowVLASettings,
        reads_state: bool = False,
        action_range: ActionRange | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            layout: Which model it is.
            network: See `ExpertNetwork`.
            scale: See `ActionScale`.
            prompts: See `Prompts`.
            obs_dim: S, numbers in `states`.
            settings: See `FlowVLASettings`.
            reads_state: The prompt holds the state.
            action_range: What the env takes; actions are clipped to it.

        Raises:
            ValueError: More numbers or actions than the network has places for.
        """
        super().__init__(len(scale.shift), settings.num_action_chunks, action_range)
        for what, own, most in (
            ("numbers in an action", self.action_dim, network.action_dim),
            ("numbers in a state", obs_dim, network.state_dim),
            ("actions in a chunk", self.num_action_chunks, settings.action_horizon),
        ):
            if own > most:
                raise ValueError(f"there are {own} {what}, and the network has places for {most}")
        if settings.rtc is not None:
            settings.rtc.check(settings.action_horizon, self.num_action_chunks)
        self.layout, self.network, self.scale, self.prompts = layout, network, scale, prompts
        self.obs_dim, self.settings, self.flow = obs_dim, settings, settings.flow
        self._reads_state = reads_state
        self.normalizer = self.value_head = self.noise_net = None
        if settings.normalize_obs:
            self.normalizer = ObsNormalizer(obs_dim, settings.obs_clip, keeps_first=True)
        self._chunk = settings.action_horizon, network.action_dim
        self._width = settings.action_horizon * network.action_dim
        each = settings.value_type == "action_level"
        self.value_dim = self.num_action_chunks if each else 1
        if settings.add_value_head:
            of_prefix = settings.value_source == "prefix"
            inputs = network.prefix_size if of_prefix else network.expert_size
            sizes = tuple(settings.value_hidden_sizes)
            self.value_head = MLP(inputs, sizes, self.value_dim, "silu")
        if self.flow.noise_method in LEARNED:
            self.noise_net = NoiseNet(
                network.prefix_size,
                self._width,
                tuple(settings.noise_hidden_sizes),
                "silu",
                (self.flow.noise_std_min, self.flow.noise_std_max),
                sees_x=self.flow.noise_method != REINFLOW,
            )

    @property
    def device(self) -> torch.device:
        """Where the policy computes."""
        return self.scale.shift.device

    @property
    def action_horizon(self) -> int:
        """See `BasePolicy.action_horizon`."""
        return self.settings.action_horizon

    @property
    def carries_plan(self) -> bool:
        """See `BasePolicy.carries_plan`: with real-time chunking."""
        return self.settings.rtc is not None

    @property
    def decided_in_rollouts(self) -> int:
        """See `BasePolicy.decided_in_rollouts`."""
        return 0 if self.settings.rtc is None else self.settings.rtc.decided_in_rollouts

    @property
    def noise_width(self) -> int:
        """See `BasePolicy.noise_width`."""
        return (1 + self.flow.drawn_steps) * self._width + 1

    @property
    def sft_noise_width(self) -> int:
        """See `BasePolicy.sft_noise_width`.

        That is noise of a chunk, what its time is drawn from, and what pictures are changed by.
        """
        return self._width + 1 + self.settings.augmentation.width

    def policy_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what of the observations is needed to recompute, on the policy's device.

        Texts become token ids here, and only those travel on. Pictures keep their size.

        Args:
            env_obs: As in `predict_action_batch`.

        Returns:
            `input_ids` [B, L]; `states` [B, S]; `view_0`, ... [B, H, W, 3] uint8, one per camera.
        """
        states = self._states(env_obs)
        told = self._normalized(states) if self._reads_state else None
        ids = self.prompts(env_obs.get("task_descriptions"), told)
        views = camera_views(env_obs, self.settings.num_images_in_input)
        inputs = {"input_ids": ids.to(self.device), "states": states}
        for number, view in enumerate(views):
            inputs[f"view_{number}"] = view.contiguous().to(self.device)
        return inputs

    def prefix(self, inputs: Mapping[str, Tensor]) -> Encoded:
        """Return the prefix of inputs as `policy_inputs` returns them."""
        network, ids = self.network, inputs["input_ids"]
        views = [inputs[f"view_{number}"] for number in range(self.settings.num_images_in_input)]
        pictures = [network.prepare(view) for view in views]
        states = self._normalized(inputs["states"])
        states = functional.pad(states, (0, network.state_dim - states.shape[-1]))
        return network.encode(pictures, ids, ids != self.prompts.pad, states)

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`: of the steps that have noise in the stored chain."""
        prefix = self.prefix(forward_inputs)
        logprobs = entropy = values = None
        if compute_logprobs or compute_entropy:
            logprobs, entropy = chain_log_probs(
                self._network(prefix),
                self.flow,
                forward_inputs["chain"],
                forward_inputs["denoise_step"],
                entropy=compute_entropy,
            )
        if compute_values:
            current = current_inputs(forward_inputs)
            values = self._values(prefix if current is None else self.prefix(current))
        decided = forward_inputs.get("decided")
        return {
            "logprobs": self._done(logprobs, decided) if compute_logprobs else None,
            "entropy": None if entropy is None else self._done(entropy, decided),
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
            augment: Change pictures at random, if the policy was built so.
            noise: Standard normal, [n, sft_noise_width]; None draws it from the generator.

        Returns:
            `losses` [n, H*A] float32, of the numbers that are no padding; see `matching_losses`.

        Raises:
            ValueError: There are fewer, or more, actions than are denoised together.
        """
        if actions.shape[1] != self.action_horizon:
            raise ValueError(
                f"{actions.shape[1]} actions follow an observation, and {self.action_horizon} are "
                f"denoised together: set model.action_horizon to {actions.shape[1]}"
            )
        if noise is None:
            noise = self._draw(len(actions), self.sft_noise_width)
        noise, of_pictures = noise[:, : self._width + 1], noise[:, self._width + 1 :]
        if augment:
            observations = self.settings.augmentation(observations, of_pictures)
        prefix = self.prefix(self.policy_inputs(observations))
        time = drawn_times(torch.special.ndtr(noise[:, -1]), self.flow.time_alpha)
        target = self.scale.to_flow(actions.to(self.device).float())
        padding = self.network.action_dim - self.action_dim
        target = functional.pad(target, (0, padding)).flatten(1)
        losses = matching_losses(self._network(prefix), target, noise[:, :-1], time)
        return {"losses": self._unpadded(losses).flatten(1)}

    def nft_forward(self, forward_inputs: Mapping[str, Tensor], x: Tensor, time: Tensor) -> Tensor:
        """See `BasePolicy.nft_forward`: plans are padded, W is H*D."""
        prefix = self.prefix(forward_inputs)
        points = zip(x.unflatten(-1, self._chunk).unbind(1), time.unbind(1), strict=True)
        # One draw at a time: a prefix takes more memory than what is computed from it.
        found = [self.network.velocity(prefix, point, at)[0].flatten(1) for point, at in points]
        return torch.stack(found, 1).float()

    def within_range(self, plans: Tensor) -> Tensor:
        """See `BasePolicy.within_range`: what was in the range, and padding, stay as they are."""
        own, padding = plans.unflatten(1, self._chunk).tensor_split([self.action_dim], -1)
        taken = self._to_env(own)
        inside = taken == self.scale.to_env(own)
        own = torch.where(inside, own, self.scale.to_flow(taken))
        return torch.cat((own, padding), -1).flatten(1)

    def executed(self, plans: Tensor) -> Tensor:
        """See `BasePolicy.executed`."""
        whole = plans.unflatten(-1, self._chunk)
        return whole[..., : self.num_action_chunks, : self.action_dim]

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
            Actions and what is needed to train on them: `chain` [B, N + 1, H*D] from noise to
            plan, and `denoise_step` [B], which of its steps has noise. `plan` [B, H, A] has the
            actions, and those that were to follow.
        """
        self._check_call(mode, sampling)
        if mode == "random":
            raise ValueError("flow policies draw no uniform actions: set algorithm.random_steps: 0")
        inputs = self.policy_inputs(env_obs)
        prefix, width = self.prefix(inputs), self._width
        network, count = self._network(prefix), len(prefix.valid)
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
        inputs |= {
            "action": self._done(chain.states[:, -1], decided),
            "chain": chain.states,
            "denoise_step": chain.noisy,
        }
        if decided is not None:
            inputs["decided"] = decided
        planned = self._to_env(self._unpadded(chain.states[:, -1]))
        if plan is not None:
            self.settings.rtc.keep_decided(planned, plan, self.num_action_chunks)
        if now is not None and self.value_head is not None:
            current = self.policy_inputs(now)
            prefix = self.prefix(current)
            inputs |= named_current(current)
        result = {
            "prev_logprobs": self._done(chain.logprobs, decided),
            "prev_values": self._values(prefix),
            "forward_inputs": inputs,
            "plan": planned,
        }
        return carried_out(planned, self.num_action_chunks, decided).contiguous(), result

    def _going_on(self, network: FlowNetwork, plan: Tensor) -> FlowNetwork:
        """Return a network that leads to plans which agree with the last ones."""
        last = self.scale.to_flow(plan.to(self.device))
        executed, width = self.num_action_chunks, self.network.action_dim
        return self.settings.rtc.going_on(network, last, executed, width)

    @torch.no_grad()
    def predict_values(self, env_obs: Mapping[str, Any]) -> Tensor:
        """See `BasePolicy.predict_values`; nothing is denoised."""
        return self._values(self.prefix(self.policy_inputs(env_obs)))

    def replay_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `BasePolicy.replay_inputs`."""
        return self.policy_inputs(env_obs)

    @staticmethod
    def is_noise_parameter(name: str) -> bool:
        """Return whether a weight belongs to the learned noise alone, which demonstrations lack.

        Args:
            name: As in `named_parameters`.
        """
        return name.startswith("noise_net.")

    def _network(self, prefix: Encoded) -> FlowNetwork:
        def network(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
            std = None if self.noise_net is None else self.noise_net(prefix.pooled, x, time)
            velocity, _ = self.network.velocity(prefix, x.unflatten(1, self._chunk), time)
            return velocity.flatten(1), std

        return network

    def _unpadded(self, x: Tensor) -> Tensor:
        """Return padded plans `[n, H*D]` without their padding, `[n, H, A]`."""
        return x.unflatten(1, self._chunk)[..., : self.action_dim]

    def _done(self, x: Tensor, decided: Tensor | None) -> Tensor:
        """Return of padded plans `[n, H*D]` what is done, `[n, C*A]`; see `carried_out`."""
        return carried_out(self._unpadded(x), self.num_action_chunks, decided).flatten(1)

    def _to_env(self, planned: Tensor) -> Tensor:
        """Return actions `[n, H, A]` of the flow in the units of the env, and within its range."""
        actions, own = self.scale.to_env(planned), self.action_range
        if not own.clip:
            return actions
        return torch.clamp(actions, *(actions.new_tensor(bound) for bound in (own.low, own.high)))

    def _values(self, prefix: Encoded) -> Tensor:
        count = len(prefix.valid)
        if self.value_head is None:
            return torch.zeros(count, self.value_dim, device=self.device)
        seen = prefix.pooled
        if self.settings.value_source == "expert":
            start = torch.zeros(count, *self._chunk, device=self.device)
            time = torch.ones(count, device=self.device)
            seen = self.network.velocity(prefix, start, time)[1].mean(1)
        if self.settings.detach_critic_input:
            seen = seen.detach()
        return self.value_head(seen).float()

    def _normalized(self, states: Tensor) -> Tensor:
        return states if self.normalizer is None else self.normalizer(states)

    def _states(self, env_obs: Mapping[str, Any]) -> Tensor:
        states = env_obs.get("states")
        found = "none" if states is None else states.shape[-1]
        if found != self.obs_dim:
            raise ValueError(
                f"the policy was built for {self.obs_dim} numbers in 'states', and the "
                f"observations have {found}"
            )
        return torch.as_tensor(states, dtype=torch.float32, device=self.device)

    def _draw(self, count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=self.generator, device=self.device)
