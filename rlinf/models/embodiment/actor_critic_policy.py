"""What the small policies share: heads, sampling, log-probabilities, values, normalisation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.action_heads import make_action_head
from rlinf.models.embodiment.base_policy import BasePolicy, ForwardType, Mode
from rlinf.models.embodiment.distributions import Distribution
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.embodiment.iql_forwards import IQLForwards
from rlinf.models.embodiment.layers import MLP, POLICY_GAIN, VALUE_GAIN
from rlinf.models.embodiment.normalizer import NormalizedStates, ObsNormalizer
from rlinf.models.embodiment.off_policy_forwards import OffPolicyForwards, make_q_head

if TYPE_CHECKING:
    from rlinf.utils.env_spec import EnvSpec


class ActorCriticPolicy(NormalizedStates, OffPolicyForwards, IQLForwards, BasePolicy):
    """A distribution of chunks of actions, and a value function or Q-functions.

    Subclasses turn observations into inputs worth storing, and inputs into features. The heads
    on the features are two networks, or two linear layers on one (`share_trunk`). Real numbers
    have a Gaussian: they are clipped to the env's range after their log-probability is taken, or
    squashed into it by tanh. Choices have a categorical distribution.

    Attributes:
        action_head: Makes distributions of what the policy head computes.
        log_std: Log of the deviation, [C*A]; None if it depends on the state, and for choices.
        normalizer: Normalises `states`; None if switched off or without states.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (
        ForwardType.DEFAULT,
        ForwardType.SFT,
        ForwardType.SAC,
        ForwardType.SAC_Q,
        ForwardType.IQL_ACTOR,
        ForwardType.IQL_CRITIC,
        ForwardType.IQL_VALUE,
        ForwardType.CROSSQ,
    )
    keeps_first_statistics: ClassVar[bool] = False
    """Whether only the first batch of observations decides how they are normalised."""
    _no_split_modules: ClassVar[list[str]] = ["MLP", "QEnsemble", "CrossQEnsemble"]

    def __init__(
        self,
        feature_dim: int,
        obs_dim: int | None,
        action_dim: int,
        settings: HeadSettings,
        env_spec: EnvSpec | None = None,
    ) -> None:
        """Make heads and normaliser.

        Args:
            feature_dim: F, numbers in the features.
            obs_dim: S, numbers in `states`; None if the policy does not use them.
            action_dim: A, numbers in one action.
            settings: See `HeadSettings`.
            env_spec: Says the range of actions or the number of choices; None is unbounded.

        Raises:
            ValueError: The distribution does not fit the actions.
        """
        own = make_action_head(action_dim, settings, env_spec)
        super().__init__(action_dim, settings.num_action_chunks, own.action_range)
        self.action_head = own
        self.settings = settings
        self.value_dim = 1 if settings.value_type == "chunk_level" else self.num_action_chunks
        self.normalizer = None
        if settings.normalize_obs and obs_dim is not None:
            self.normalizer = ObsNormalizer(obs_dim, settings.obs_clip, self.keeps_first_statistics)
        self._make_heads(feature_dim)

    def _make_heads(self, feature_dim: int) -> None:
        own, outputs = self.settings, self.action_head.outputs
        self.q_head = make_q_head(feature_dim, self.action_head, own)
        hidden, self.trunk = tuple(own.hidden_sizes), None
        gains = (POLICY_GAIN, VALUE_GAIN) if own.orthogonal_init else (None, None)
        if own.share_trunk:
            self.trunk = MLP(feature_dim, hidden, None, own.activation, gains[0])
            feature_dim, hidden = [feature_dim, *hidden][-1], ()
        self.policy_head = MLP(feature_dim, hidden, outputs, own.activation, gains[0])
        self.value_head = None
        if own.add_value_head:
            self.value_head = MLP(feature_dim, hidden, self.value_dim, own.activation, gains[1])
        self.log_std = None
        if not self.action_head.learns_deviation:
            return
        width = self.num_action_chunks * self.action_dim
        if own.state_dependent_std:
            nn.init.constant_(self.policy_head.head.bias[width:], own.init_log_std)
        else:
            self.log_std = nn.Parameter(torch.full((width,), float(own.init_log_std)))

    @property
    def device(self) -> torch.device:
        """Where the policy computes."""
        # Looked up in the plain dicts, since every step asks; see `MLP.forward`.
        return self._modules["action_head"]._buffers["low"].device

    @abstractmethod
    def policy_inputs(self, env_obs: Mapping[str, Any], augment: bool) -> dict[str, Tensor]:
        """Return what of the observations is needed to recompute, on the policy's device.

        Args:
            env_obs: As in `predict_action_batch`.
            augment: Draw random augmentations and store them; False stores none.
        """

    @abstractmethod
    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the features [n, F] of inputs as `policy_inputs` returns them."""

    def distribution(self, features: Tensor) -> Distribution:
        """Return the distribution of chunks of actions.

        Args:
            features: After the trunk, if there is one, [n, F].
        """
        return self.action_head.distribution(self.policy_head(features).float(), self.log_std)

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`."""
        return self._judge(
            self._trunk(forward_inputs),
            forward_inputs["action"],
            compute_logprobs,
            compute_entropy,
            compute_values,
        )

    def _judge(
        self,
        features: Tensor,
        action: Tensor,
        compute_logprobs: bool,
        compute_entropy: bool,
        compute_values: bool,
    ) -> dict[str, Tensor | None]:
        """Return what `default_forward` does, of features after the trunk."""
        logprobs = entropy = values = None
        if compute_logprobs or compute_entropy:
            actions = self.distribution(features)
            if compute_logprobs:
                logprobs = actions.log_prob(action)
            if compute_entropy:
                entropy = actions.entropy()
        if compute_values:
            values = self._values(features)
        return {"logprobs": logprobs, "entropy": entropy, "values": values}

    def sft_inputs(
        self, observations: Mapping[str, Any], augment: bool, noise: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the inputs of supervised training.

        A policy that augments says in `sft_noise_width` how much noise it takes for that.

        Args:
            observations: As in `predict_action_batch`, any number n of samples.
            augment: Augment at random.
            noise: Standard normal, of the augmentations alone; None draws it from the generator.
        """
        return self.policy_inputs(observations, augment=augment)

    def sft_forward(
        self,
        observations: Mapping[str, Any],
        actions: Tensor,
        augment: bool = True,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Compare, with gradients, what the policy would do with what was done.

        Args:
            observations: As in `predict_action_batch`, any number n of samples.
            actions: What was done, in the units of the env, [n, C, A].
            augment: Draw random augmentations, where the policy has them.
            noise: Standard normal, [n, sft_noise_width]; None draws it from the generator.

        Returns:
            `logprobs`, log-probabilities of the actions, and `errors`, how far the policy's own
            are from them; see `ActionHead.errors`. Each [n, C*A] float32.
        """
        inputs = self.sft_inputs(observations, augment, noise)
        return self._compare(self.distribution(self._trunk(inputs)), actions)

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
            mode: `train` samples; `eval` takes the mean, or the likeliest choice; `random` draws
                uniformly from the range of actions.
            noise: Standard normal noise to sample with, [B, C*A]; None draws it from the
                policy's generator.
            **sampling: None are known.

        Returns:
            Actions and what is needed to train on them.
        """
        self._check_call(mode, sampling)
        inputs = self.policy_inputs(env_obs, augment=mode != "eval")
        return self._act(self._trunk(inputs), inputs, mode, noise)

    def _act(
        self,
        features: Tensor,
        inputs: dict[str, Tensor],
        mode: Mode,
        noise: Tensor | None,
        compute_logprobs: bool = True,
        compute_values: bool = True,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return what `predict_action_batch` does, of features after the trunk."""
        actions = self.distribution(features)
        if mode != "eval":
            if noise is None:
                shape = len(features), self.num_action_chunks * self.action_dim
                noise = torch.randn(shape, generator=self.generator, device=features.device)
            uniform = mode == "random"
            action = self.action_head.uniform(noise) if uniform else actions.sample(noise)
        else:
            action = actions.mode()
        inputs["action"] = action
        result: dict[str, Any] = {"forward_inputs": inputs}
        if compute_logprobs:
            result["prev_logprobs"] = actions.log_prob(action)
        else:
            result["distribution"] = actions
        if compute_values:
            result["prev_values"] = self._values(features)
        return self.action_head.to_env(action), result

    def replay_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `BasePolicy.replay_inputs`."""
        return self.policy_inputs(env_obs, augment=False)

    @torch.no_grad()
    def predict_values(self, env_obs: Mapping[str, Any]) -> Tensor:
        """See `BasePolicy.predict_values`; the policy head is not run."""
        return self._values(self._trunk(self.policy_inputs(env_obs, augment=False)))

    def _states(self, env_obs: Mapping[str, Any], obs_dim: int) -> Tensor:
        """Return `states` as [B, S] float32 on the policy's device."""
        states = env_obs.get("states")
        if states is None:
            raise ValueError(
                f"{type(self).__name__} needs 'states' in the observations; there are: "
                f"{', '.join(sorted(key for key in env_obs if env_obs[key] is not None))}"
            )
        device = self.device
        if not (
            isinstance(states, Tensor) and states.dtype is torch.float32 and states.device == device
        ):
            states = torch.as_tensor(states, dtype=torch.float32, device=device)
        if states.shape[-1] != obs_dim:
            raise ValueError(
                f"the policy was built for {obs_dim} numbers per observation, "
                f"but 'states' has {states.shape[-1]}"
            )
        return states

    def _trunk(self, inputs: Mapping[str, Tensor]) -> Tensor:
        features = self.features(inputs)
        return features if self.trunk is None else self.trunk(features)

    def _values(self, features: Tensor) -> Tensor:
        if self.value_head is None:
            return torch.zeros(len(features), self.value_dim, device=features.device)
        return self.value_head(features).float()
