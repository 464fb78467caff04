"""What Gaussian policies share: heads, sampling, log-probabilities, values, normalisation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf.models.embodiment import gaussian
from rlinf.models.embodiment.action_range import ActionRange
from rlinf.models.embodiment.base_policy import BasePolicy, Mode
from rlinf.models.embodiment.layers import MLP, POLICY_GAIN, VALUE_GAIN
from rlinf.models.embodiment.normalizer import ObsNormalizer
from rlinf.utils.running_stats import AllReduce

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec


@dataclass(frozen=True)
class HeadSettings:
    """How actions and values come from features; the config keys of the same names."""

    hidden_sizes: Sequence[int] = (128, 128)
    activation: str = "tanh"
    share_trunk: bool = False
    orthogonal_init: bool = True
    state_dependent_std: bool = False
    init_log_std: float = 0.0
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    squash_actions: bool = False
    clip_actions: bool = True
    normalize_obs: bool = True
    obs_clip: float = 10.0
    num_action_chunks: int = 1
    add_value_head: bool = False
    value_type: str = "chunk_level"

    @classmethod
    def of(cls, cfg: DictConfig) -> HeadSettings:
        """Reads the settings from a model section."""
        if cfg.is_lora:
            raise ValueError(
                f"model.is_lora is true, but {cfg.model_type} has no adapters: it trains all of "
                "its weights"
            )
        own = {field.name: cfg[field.name] for field in fields(cls)}
        return cls(**{**own, "hidden_sizes": tuple(own["hidden_sizes"])})

    def __post_init__(self) -> None:
        """Checks the settings against each other."""
        if not self.log_std_min <= self.init_log_std <= self.log_std_max:
            raise ValueError(
                f"init_log_std {self.init_log_std} is outside of log_std_min {self.log_std_min} "
                f"to log_std_max {self.log_std_max}"
            )


class GaussianPolicy(BasePolicy):
    """A diagonal Gaussian over chunks of actions, and a value function.

    Subclasses turn observations into inputs worth storing, and inputs into features. The heads
    on the features are two networks, or two linear layers on one (`share_trunk`). Actions are
    clipped to the env's range after their log-probability is taken, or squashed into it by tanh.

    Attributes:
        log_std: Log of the deviation, [C*A]; absent if it depends on the state.
        normalizer: Normalises `states`; None if switched off or without states.
    """

    _no_split_modules: ClassVar[list[str]] = ["MLP"]

    def __init__(
        self,
        feature_dim: int,
        obs_dim: int | None,
        action_dim: int,
        settings: HeadSettings,
        env_spec: EnvSpec | None = None,
    ) -> None:
        """Makes heads and normaliser.

        Args:
            feature_dim: F, numbers in the features.
            obs_dim: S, numbers in `states`; None if the policy does not use them.
            action_dim: A, numbers in one action.
            settings: See `HeadSettings`.
            env_spec: Says the range of actions; None is unbounded.

        Raises:
            ValueError: Actions are to be squashed into a range that is not known or not finite.
        """
        bounds = [getattr(env_spec, name, None) for name in ("action_low", "action_high")]
        own = ActionRange(action_dim, *bounds, settings.clip_actions, settings.squash_actions)
        super().__init__(action_dim, settings.num_action_chunks, own.convention)
        self.action_range = own
        self.settings = settings
        self.value_dim = 1 if settings.value_type == "chunk_level" else self.num_action_chunks
        self.normalizer = None
        if settings.normalize_obs and obs_dim is not None:
            self.normalizer = ObsNormalizer(obs_dim, settings.obs_clip)
        self._make_heads(feature_dim)

    def _make_heads(self, feature_dim: int) -> None:
        own, width = self.settings, self.num_action_chunks * self.action_dim
        outputs = 2 * width if own.state_dependent_std else width
        hidden, self.trunk = tuple(own.hidden_sizes), None
        gains = (POLICY_GAIN, VALUE_GAIN) if own.orthogonal_init else (None, None)
        if own.share_trunk:
            self.trunk = MLP(feature_dim, hidden, None, own.activation, gains[0])
            feature_dim, hidden = [feature_dim, *hidden][-1], ()
        self.policy_head = MLP(feature_dim, hidden, outputs, own.activation, gains[0])
        self.value_head = None
        if own.add_value_head:
            self.value_head = MLP(feature_dim, hidden, self.value_dim, own.activation, gains[1])
        if own.state_dependent_std:
            self.log_std = None
            nn.init.constant_(self.policy_head.head.bias[width:], own.init_log_std)
        else:
            self.log_std = nn.Parameter(torch.full((width,), float(own.init_log_std)))

    @abstractmethod
    def policy_inputs(self, env_obs: Mapping[str, Any], augment: bool) -> dict[str, Tensor]:
        """Returns what of the observations is needed to recompute, on the policy's device.

        Args:
            env_obs: As in `predict_action_batch`.
            augment: Draw random augmentations and store them; False stores none.
        """

    @abstractmethod
    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the features [n, F] of inputs as `policy_inputs` returns them."""

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`."""
        features = self._trunk(forward_inputs)
        logprobs = entropy = values = None
        if compute_logprobs or compute_entropy:
            mean, log_std = self._distribution(features)
            if compute_logprobs:
                logprobs = self._log_prob(mean, log_std, forward_inputs["action"])
            if compute_entropy:
                entropy = self._entropy(mean, log_std)
        if compute_values:
            values = self._values(features)
        return {"logprobs": logprobs, "entropy": entropy, "values": values}

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
            mode: `train` samples; `eval` takes the mean.
            noise: Standard normal noise to sample with, [B, C*A]; None draws it from the
                policy's generator.
            **sampling: None are known.

        Returns:
            Actions and what is needed to train on them.
        """
        self._check_call(mode, sampling)
        sample = mode == "train"
        inputs = self.policy_inputs(env_obs, augment=sample)
        features = self._trunk(inputs)
        mean, log_std = self._distribution(features)
        action = mean
        if sample:
            if noise is None:
                noise = torch.randn(mean.shape, generator=self.generator, device=mean.device)
            action = torch.addcmul(mean, log_std.exp(), noise)
        inputs["action"] = action
        result = {
            "prev_logprobs": self._log_prob(mean, log_std, action),
            "prev_values": self._values(features),
            "forward_inputs": inputs,
        }
        chunks = action.view(-1, self.num_action_chunks, self.action_dim)
        return self.action_range(chunks), result

    @torch.no_grad()
    def predict_values(self, env_obs: Mapping[str, Any]) -> Tensor:
        """See `BasePolicy.predict_values`; the policy head is not run."""
        return self._values(self._trunk(self.policy_inputs(env_obs, augment=False)))

    def update_normalizer(
        self,
        observations: Mapping[str, Any],
        mask: Tensor | None = None,
        all_reduce: AllReduce | None = None,
        commit: bool = True,
    ) -> None:
        """See `BasePolicy.update_normalizer`; uses `states`."""
        if self.normalizer is not None:
            states = torch.as_tensor(observations["states"])
            self.normalizer.update(states, mask, all_reduce, commit)

    def commit_normalizer(self) -> None:
        """See `BasePolicy.commit_normalizer`."""
        if self.normalizer is not None:
            self.normalizer.commit()

    def _states(self, env_obs: Mapping[str, Any], obs_dim: int) -> Tensor:
        """Returns `states` as [B, S] float32 on the policy's device."""
        states = env_obs.get("states")
        if states is None:
            raise ValueError(
                f"{type(self).__name__} needs 'states' in the observations; there are: "
                f"{', '.join(sorted(key for key in env_obs if env_obs[key] is not None))}"
            )
        states = torch.as_tensor(states, dtype=torch.float32, device=self.action_range.low.device)
        if states.shape[-1] != obs_dim:
            raise ValueError(
                f"the policy was built for {obs_dim} numbers per observation, "
                f"but 'states' has {states.shape[-1]}"
            )
        return states

    def _trunk(self, inputs: Mapping[str, Tensor]) -> Tensor:
        features = self.features(inputs)
        return features if self.trunk is None else self.trunk(features)

    def _distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean [n, C*A] and the log of the deviation, [C*A] or [n, C*A]."""
        mean, log_std = self.policy_head(features).float(), self.log_std
        if log_std is None:
            mean, log_std = mean.chunk(2, dim=-1)
        return mean, log_std.float().clamp(self.settings.log_std_min, self.settings.log_std_max)

    def _values(self, features: Tensor) -> Tensor:
        if self.value_head is None:
            return torch.zeros(len(features), self.value_dim, device=features.device)
        return self.value_head(features).float()

    def _log_prob(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        logprobs = gaussian.log_prob(mean, log_std, action)
        if self.settings.squash_actions:
            return logprobs - gaussian.log_slope(action) - self._log_range()
        return logprobs

    def _entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        if self.settings.squash_actions:
            return gaussian.squashed_entropy(mean, log_std) + self._log_range()
        return gaussian.entropy(log_std, len(mean))

    def _log_range(self) -> Tensor:
        return self.action_range.log_radius.repeat(self.num_action_chunks)
