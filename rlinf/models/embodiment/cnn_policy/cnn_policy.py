"""Policy on images and state: one encoder per group of cameras, then the usual heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.actor_critic_policy import ActorCriticPolicy
from rlinf.models.embodiment.cnn_policy.encoder import ConvEncoder
from rlinf.models.embodiment.cnn_policy.images import as_views, scaled, shifted, whole_shifts
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.settings import needed
from rlinf.models.weights import load_weights

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec

_COLOURS = 3


@dataclass(frozen=True)
class ImageSettings:
    """How images become features; the config keys of the same names."""

    channels: Sequence[int] = (32, 64, 64)
    image_size: int = 84
    pooling: str = "flatten"
    feature_dim: int = 256
    wrist_views: int = 0
    extra_views: int = 0
    random_shift: int = 0

    @property
    def views(self) -> dict[str, int]:
        """Keys of the observation that are used, and how many cameras each has."""
        counts = {
            "main_images": 1,
            "wrist_images": self.wrist_views,
            "extra_view_images": self.extra_views,
        }
        return {key: count for key, count in counts.items() if count}

    @classmethod
    def of(cls, cfg: DictConfig) -> ImageSettings:
        """Read the settings from a model section."""
        own = {field.name: cfg[field.name] for field in fields(cls)}
        return cls(**{**own, "channels": tuple(own["channels"])})


class CNNPolicy(ActorCriticPolicy):
    """Acts on images [B, H, W, C] uint8 and, if there are any, `states` [B, S].

    Policy and value heads share the encoders. A random shift of the images is drawn when acting
    and stored beside them, so that training sees what acting saw and the ratio starts at one.
    """

    critic_modules: ClassVar[tuple[str, ...]] = ("q_head", "encoders")
    _no_split_modules: ClassVar[list[str]] = ["ConvEncoder", "MLP", "QEnsemble", "CrossQEnsemble"]

    def __init__(
        self,
        obs_dim: int | None,
        action_dim: int,
        settings: HeadSettings | None = None,
        images: ImageSettings | None = None,
        env_spec: EnvSpec | None = None,
    ) -> None:
        """Make encoders and heads.

        Args:
            obs_dim: S, numbers in `states`; None does not use them.
            action_dim: A, numbers in one action.
            settings: See `HeadSettings`.
            images: See `ImageSettings`.
            env_spec: Says what actions are valid, and the channels of images.
        """
        settings, images = settings or HeadSettings(), images or ImageSettings()
        width = sum(images.views.values()) * images.feature_dim + (obs_dim or 0)
        super().__init__(width, obs_dim, action_dim, settings, env_spec)
        self.obs_dim = obs_dim
        self.images = images
        shape = getattr(env_spec, "image_shape", None)
        self.image_channels = shape[-1] if shape else _COLOURS
        self.encoders = nn.ModuleDict(
            {
                key: ConvEncoder(
                    self.image_channels,
                    images.channels,
                    images.image_size,
                    images.feature_dim,
                    settings.activation,
                    images.pooling,
                )
                for key in images.views
            }
        )

    def policy_inputs(self, env_obs: Mapping[str, Any], augment: bool) -> dict[str, Tensor]:
        """See `ActorCriticPolicy.policy_inputs`.

        Returns:
            Per group of cameras [B, V, H, W, C] uint8 in the policy's size; `states` [B, S] if
            used; `shift` [B, 2] if the policy was built with a random shift.
        """
        device = self.device
        inputs = {}
        for key, views in self.images.views.items():
            images = as_views(env_obs.get(key), views, self.image_channels, key).to(device)
            inputs[key] = scaled(images, self.images.image_size)
        if self.obs_dim is not None:
            inputs["states"] = self._states(env_obs, self.obs_dim)
        most = self.images.random_shift
        if most:
            inputs["shift"] = torch.zeros(len(inputs["main_images"]), 2, dtype=torch.long).to(
                device
            )
            if augment:
                inputs["shift"].random_(-most, most + 1, generator=self.generator)
        return inputs

    @property
    def sft_noise_width(self) -> int:
        """See `BasePolicy.sft_noise_width`: what shifts are drawn from."""
        return 2 if self.images.random_shift else 0

    def sft_inputs(
        self, observations: Mapping[str, Any], augment: bool, noise: Tensor | None
    ) -> dict[str, Tensor]:
        """See `ActorCriticPolicy.sft_inputs`: all cameras of a sample are shifted alike."""
        if noise is None:
            return self.policy_inputs(observations, augment)
        inputs = self.policy_inputs(observations, augment=False)
        if augment and self.images.random_shift:
            inputs["shift"] = whole_shifts(noise.to(self.device), self.images.random_shift)
        return inputs

    def shift_pictures(
        self, forward_inputs: Mapping[str, Tensor], most: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """See `BasePolicy.shift_pictures`: all cameras of a sample alike."""
        count, device = len(forward_inputs["main_images"]), generator.device
        shift = torch.randint(-most, most + 1, (count, 2), generator=generator, device=device)
        return {**forward_inputs, "shift": shift}

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `ActorCriticPolicy.features`: encoded images, then normalised states."""
        parts = []
        for key, encoder in self.encoders.items():
            images = inputs[key]
            if "shift" in inputs:
                images = shifted(images, inputs["shift"])
            parts.append(encoder(images.flatten(0, 1)).view(len(images), -1))
        if self.obs_dim is not None:
            states = inputs["states"]
            states = states if self.normalizer is None else self.normalizer(states)
            parts.append(states.to(parts[0].dtype))
        return torch.cat(parts, dim=1)


def build_cnn_policy(
    cfg: DictConfig, torch_dtype: torch.dtype, env_spec: EnvSpec | None = None
) -> CNNPolicy:
    """Build the policy from its model section.

    Args:
        cfg: The section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says what actions are valid, and the channels of images.

    Returns:
        The policy, with the weights at `model_path` if that is set.
    """
    policy = CNNPolicy(
        needed(cfg, "obs_dim") if cfg.use_states else None,
        needed(cfg, "action_dim"),
        HeadSettings.of(cfg),
        ImageSettings.of(cfg),
        env_spec,
    )
    policy.to(torch_dtype)
    if cfg.model_path is not None:
        load_weights(policy, cfg.model_path)
    return policy
