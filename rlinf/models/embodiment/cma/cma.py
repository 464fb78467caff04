"""Recurrent policy on pictures and an instruction, after the cross-modal attention of VLN-CE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rlinf.models.embodiment.actor_critic_policy import ActorCriticPolicy
from rlinf.models.embodiment.base_policy import ForwardType, Mode
from rlinf.models.embodiment.cma.network import (
    CrossModalNetwork,
    InstructionEncoder,
    PictureEncoder,
)
from rlinf.models.embodiment.cma.words import WordEncoder
from rlinf.models.embodiment.cnn_policy.images import as_views, scaled
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.settings import needed
from rlinf.models.weights import load_weights

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.utils.env_spec import EnvSpec

_COLOURS = 3


class CMAPolicy(ActorCriticPolicy):
    """Acts on `main_images` `[B, H, W, C]` uint8 and `task_descriptions`, and remembers.

    Attributes:
        network: Makes features, and what is remembered.
        words: Makes numbers of instructions.
        image_size: Height and width of the pictures that the network sees.
        sequence_length: See `BasePolicy.sequence_length`.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (ForwardType.DEFAULT,)
    _no_split_modules: ClassVar[list[str]] = ["PictureEncoder", "MLP"]

    def __init__(
        self,
        network: CrossModalNetwork,
        words: WordEncoder,
        image_size: int,
        sequence_length: int,
        action_dim: int,
        settings: HeadSettings,
        env_spec: EnvSpec | None = None,
    ) -> None:
        """Put the network and the heads together.

        Args:
            network: See `CrossModalNetwork`.
            words: See `WordEncoder`.
            image_size: Height and width of the pictures that the network sees.
            sequence_length: Chunk steps that gradients go back through.
            action_dim: A, numbers in one action.
            settings: See `HeadSettings`.
            env_spec: Says what actions are valid, and the channels of pictures.
        """
        super().__init__(network.second.hidden_size, None, action_dim, settings, env_spec)
        self.network, self.words, self.image_size = network, words, image_size
        self._sequence_length = sequence_length
        self._channels = picture_channels(env_spec)

    @property
    def memory_width(self) -> int:
        """See `BasePolicy.memory_width`."""
        return self.network.memory_width

    @property
    def sequence_length(self) -> int:
        """See `BasePolicy.sequence_length`."""
        return self._sequence_length

    def policy_inputs(self, env_obs: Mapping[str, Any], augment: bool) -> dict[str, Tensor]:
        """See `ActorCriticPolicy.policy_inputs`.

        Returns:
            `main_images` `[B, H, W, C]` uint8 in the policy's size, and `words` `[B, W]`.
        """
        images = as_views(env_obs.get("main_images"), 1, self._channels, "main_images")
        return {
            "main_images": scaled(images.to(self.device), self.image_size).squeeze(1),
            "words": self.words(env_obs.get("task_descriptions")).to(self.device),
        }

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `ActorCriticPolicy.features`: of single steps, each with the memory before it."""
        return self._remember(inputs, 1).features

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
        steps: int = 1,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`.

        Args:
            forward_inputs: Of sequences, `[steps * sequences, ...]`.
            compute_logprobs: Return log-probabilities.
            compute_entropy: Return the entropy.
            compute_values: Return values.
            steps: Of each sequence. The memory before the first of them is taken as it was; later
                ones have what the policy would remember now.
        """
        features = self._remember(forward_inputs, steps).features
        return self._judge(
            features, forward_inputs["action"], compute_logprobs, compute_entropy, compute_values
        )

    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: Mode = "train",
        noise: Tensor | None = None,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
        **sampling: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """See `BasePolicy.predict_action_batch`.

        Args:
            env_obs: Observations.
            mode: As of `ActorCriticPolicy.predict_action_batch`.
            noise: As of `ActorCriticPolicy.predict_action_batch`.
            memory: What the policy remembers, `[B, M]`; None is nothing.
            begins: Where an episode begins, bool `[B]`; None is everywhere.
            **sampling: None are known.
        """
        self._check_call(mode, sampling)
        inputs = self._inputs(env_obs, memory, begins)
        remembered = self._remember(inputs, 1)
        actions, result = self._act(remembered.features, inputs, mode, noise)
        return actions, {**result, "memory": remembered.memory}

    @torch.no_grad()
    def predict_values(
        self,
        env_obs: Mapping[str, Any],
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> Tensor:
        """See `BasePolicy.predict_values`."""
        return self._values(self.features(self._inputs(env_obs, memory, begins)))

    def _inputs(
        self, env_obs: Mapping[str, Any], memory: Tensor | None, begins: Tensor | None
    ) -> dict[str, Tensor]:
        """Return what one step is computed from, memory included."""
        inputs = self.policy_inputs(env_obs, augment=False)
        count, device = len(inputs["words"]), self.device
        if memory is None:
            memory = torch.zeros(count, self.memory_width, device=device)
        if begins is None:
            begins = torch.ones(count, dtype=torch.bool, device=device)
        return {**inputs, "memory": memory, "begins": begins}

    def _remember(self, inputs: Mapping[str, Tensor], steps: int) -> Any:
        sequences = len(inputs["words"]) // steps
        return self.network(
            inputs["main_images"],
            inputs["words"],
            inputs["memory"][:sequences],
            inputs["begins"],
            steps,
        )


def picture_channels(env_spec: EnvSpec | None) -> int:
    """Return the channels of the pictures of an env."""
    shape = getattr(env_spec, "image_shape", None)
    return shape[-1] if shape else _COLOURS


def build_cma(
    cfg: DictConfig, torch_dtype: torch.dtype, env_spec: EnvSpec | None = None
) -> CMAPolicy:
    """Build the policy from its model section.

    Args:
        cfg: The section, with sizes filled in.
        torch_dtype: Number format of the weights.
        env_spec: Says what actions are valid, and the channels of pictures.

    Returns:
        The policy, with the weights at `model_path` if that is set.
    """
    words = list(cfg.words)
    choices = cfg.action_choices
    settings = HeadSettings(
        hidden_sizes=tuple(cfg.hidden_sizes),
        activation=cfg.activation,
        action_choices=None if choices is None else tuple(choices),
        num_action_chunks=cfg.num_action_chunks,
        add_value_head=cfg.add_value_head,
        value_type=cfg.value_type,
    )
    network = CrossModalNetwork(
        PictureEncoder(picture_channels(env_spec), tuple(cfg.channels), cfg.image_size),
        InstructionEncoder(len(words), cfg.word_dim, cfg.attention_dim),
        cfg.rnn_size,
        cfg.attention_dim,
    )
    policy = CMAPolicy(
        network,
        WordEncoder(words, cfg.max_words),
        cfg.image_size,
        cfg.sequence_length,
        needed(cfg, "action_dim"),
        settings,
        env_spec,
    )
    policy.to(torch_dtype)
    if cfg.model_path is not None:
        load_weights(policy, cfg.model_path)
    return policy
