"""Classifiers of observations: the log-odds that a task is solved in what is observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.cnn_policy.cnn_policy import ImageSettings
from rlinf.models.embodiment.cnn_policy.encoder import ConvEncoder
from rlinf.models.embodiment.cnn_policy.images import as_views, scaled
from rlinf.models.embodiment.layers import MLP, VALUE_GAIN
from rlinf.models.embodiment.normalizer import ObsNormalizer
from rlinf.models.embodiment.recompute import recompute_named
from rlinf.models.settings import needed
from rlinf.models.weights import load_weights

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec

_COLOURS = 3


class RewardModel(nn.Module):
    """Looks at `states` [n, S], at images [n, H, W, C] uint8, or at both.

    Attributes:
        obs_dim: S; None if states are not used.
        images: How images become features; None if they are not used.
        normalizer: Normalises states; None if switched off or without states.
    """

    _no_split_modules: ClassVar[list[str]] = ["ConvEncoder", "MLP"]

    def __init__(
        self,
        obs_dim: int | None,
        images: ImageSettings | None = None,
        *,
        hidden_sizes: Sequence[int] = (128, 128),
        activation: str = "tanh",
        obs_clip: float | None = 10.0,
        image_channels: int = _COLOURS,
    ) -> None:
        """Make the networks.

        Args:
            obs_dim: S, numbers in `states`; None does not use them.
            images: See `ImageSettings`; None does not use any.
            hidden_sizes: Units of each hidden layer.
            activation: Function between layers.
            obs_clip: Largest absolute value of normalised states; None does not normalise.
            image_channels: C, channels of an image.

        Raises:
            ValueError: Neither states nor images are used.
        """
        super().__init__()
        if obs_dim is None and images is None:
            raise ValueError("a reward model needs states, images, or both to look at")
        self.obs_dim, self.images, self.image_channels = obs_dim, images, image_channels
        self.normalizer = None
        if obs_dim is not None and obs_clip is not None:
            self.normalizer = ObsNormalizer(obs_dim, obs_clip)
        views = {} if images is None else images.views
        self.encoders = nn.ModuleDict(
            {
                key: ConvEncoder(
                    image_channels,
                    images.channels,
                    images.image_size,
                    images.feature_dim,
                    activation,
                    images.pooling,
                )
                for key in views
            }
        )
        width = (obs_dim or 0) + sum(views.values()) * (images.feature_dim if images else 0)
        self.head = MLP(width, hidden_sizes, 1, activation, VALUE_GAIN)

    @property
    def observation_names(self) -> list[str]:
        """Names of the observations that the model looks at."""
        return [*self.encoders, *(() if self.obs_dim is None else ("states",))]

    def forward(self, observations: Mapping[str, Any]) -> Tensor:
        """Return the log-odds that the task is solved, float32 [n].

        Args:
            observations: By name, [n, ...] each.

        Raises:
            ValueError: An observation is missing or of another shape.
        """
        parts = []
        device = next(self.parameters()).device
        for key, encoder in self.encoders.items():
            views = self.images.views[key]
            images = as_views(observations.get(key), views, self.image_channels, key).to(device)
            images = scaled(images, self.images.image_size)
            parts.append(encoder(images.flatten(0, 1)).view(len(images), -1))
        if self.obs_dim is not None:
            states = self._states(observations).to(device)
            states = states if self.normalizer is None else self.normalizer(states)
            parts.append(states.to(parts[0].dtype) if parts else states)
        return self.head(torch.cat(parts, dim=1)).squeeze(1).float()

    def _states(self, observations: Mapping[str, Any]) -> Tensor:
        states = observations.get("states")
        if states is None:
            known = ", ".join(sorted(observations))
            raise ValueError(f"the reward model needs 'states' in the observations: {known}")
        states = torch.as_tensor(states, dtype=torch.float32)
        if states.shape[-1] != self.obs_dim:
            raise ValueError(
                f"the reward model was built for {self.obs_dim} numbers per observation, but "
                f"'states' has {states.shape[-1]}"
            )
        return states

    def update_normalizer(self, observations: Mapping[str, Tensor]) -> None:
        """Add observations to the statistics that states are normalised by, and apply these."""
        if self.normalizer is not None:
            self.normalizer.update(self._states(observations))

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations in backward passes."""
        recompute_named(self, self._no_split_modules)


def build_mlp_reward_model(cfg: DictConfig, torch_dtype: torch.dtype) -> RewardModel:
    """Build the reward model on states from its model section.

    Args:
        cfg: The section, with sizes filled in.
        torch_dtype: Number format of the weights.

    Returns:
        The model, with the weights at `model_path` if that is set.
    """
    return _build(cfg, torch_dtype, needed(cfg, "obs_dim"), None, _COLOURS)


def build_cnn_reward_model(
    cfg: DictConfig, torch_dtype: torch.dtype, env_spec: EnvSpec | None = None
) -> RewardModel:
    """Build the reward model on images and states from its model section.

    Args:
        cfg: The section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says the channels of images.

    Returns:
        The model, with the weights at `model_path` if that is set.
    """
    images = ImageSettings(
        channels=tuple(cfg.channels),
        image_size=cfg.image_size,
        pooling=cfg.pooling,
        feature_dim=cfg.feature_dim,
        wrist_views=cfg.wrist_views,
        extra_views=cfg.extra_views,
    )
    obs_dim = needed(cfg, "obs_dim") if cfg.use_states else None
    shape = getattr(env_spec, "image_shape", None)
    return _build(cfg, torch_dtype, obs_dim, images, shape[-1] if shape else _COLOURS)


def _build(
    cfg: DictConfig,
    dtype: torch.dtype,
    obs_dim: int | None,
    images: ImageSettings | None,
    channels: int,
) -> RewardModel:
    model = RewardModel(
        obs_dim,
        images,
        hidden_sizes=tuple(cfg.hidden_sizes),
        activation=cfg.activation,
        obs_clip=cfg.obs_clip if cfg.normalize_obs else None,
        image_channels=channels,
    )
    model.to(dtype)
    if cfg.model_path is not None:
        load_weights(model, cfg.model_path)
    return model
