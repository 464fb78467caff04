"""What networks of a prefix and an action expert share.

A place of the prefix sees no action, so that the prefix is computed once for an observation: what
denoising steps need of it are keys and values of each layer.

Shapes: n samples, P places of the prefix, C actions in a chunk, D numbers in a padded action, H
hidden units of the prefix, W of the expert.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.embodiment.flow.network import time_embedding
from rlinf.models.embodiment.flow_vla.decoder import Decoder, KeysValues
from rlinf.models.embodiment.flow_vla.pictures import padded_pictures

PERIODS = 4e-3, 4.0
"""Shortest and longest period of the embedding of times."""


class Encoded(Protocol):
    """What any network makes of observations, once for all denoising steps."""

    @property
    def valid(self) -> Tensor:
        """Which places are no padding, bool `[n, P]`."""

    @property
    def pooled(self) -> Tensor:
        """Mean of the last hidden states, `[n, H]`."""


class Prefix(NamedTuple):
    """What an observation is to the expert.

    Attributes:
        memory: Keys and values of each layer, P places.
        valid: Which places are no padding, bool `[n, P]`.
        pooled: Mean of the last hidden states of pictures and instruction, `[n, H]`.
    """

    memory: list[KeysValues]
    valid: Tensor
    pooled: Tensor


class ExpertNetwork(nn.Module):
    """Velocities of padded chunks of actions, given a prefix.

    Attributes:
        action_dim: D, numbers in a padded action.
        state_dim: Numbers in a padded state.
        image_size: Height and width of pictures (pixels).
        centred: Pictures are padded on all sides; else left and above.
        prefix_size: H.
        expert_size: W.
        vision_parts: Paths of the modules that only look at pictures.
        prefix_parts: Paths of the modules of the pretrained prefix.
        expert_parts: Paths of the modules of the pretrained expert.
        unused: Tensors of the public layout that nothing runs, and their shapes.
        renamed: Names of tensors in files, by names here, where they differ.
        token_embedding: Name of the embedding of tokens.
        sizes: What it was made with.
    """

    action_dim: int
    state_dim: int
    image_size: int
    centred: bool
    prefix_size: int
    expert_size: int
    vision_parts: tuple[str, ...]
    prefix_parts: tuple[str, ...]
    expert_parts: tuple[str, ...] = ()
    unused: dict[str, tuple[int, ...]]
    renamed: dict[str, str]
    token_embedding: str
    sizes: Any
    output_layer = ""

    def is_base(self, name: str) -> bool:
        """Return whether a weight is one of the two pretrained stacks or of the vision tower."""
        return name.startswith((*self.prefix_parts, *self.expert_parts))

    def prepare(self, images: Tensor) -> Tensor:
        """Return pictures as `encode` takes them, of images `[n, H, W, 3]` uint8."""
        return padded_pictures(images, self.image_size, self.centred)

    @abstractmethod
    def encode(
        self, pictures: Sequence[Tensor], ids: Tensor, valid: Tensor, states: Tensor
    ) -> Encoded:
        """Return the prefix of observations.

        Args:
            pictures: Of each camera, from -1 to 1, `[n, 3, image_size, image_size]`.
            ids: Token ids of the instruction, `[n, L]`.
            valid: Which of them are no padding, bool `[n, L]`.
            states: Normalised and padded, `[n, state_dim]`.
        """

    @abstractmethod
    def velocity(self, prefix: Encoded, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return velocities `[n, C, D]` and the expert's last hidden states `[n, C, W]`.

        Args:
            prefix: What `encode` returned.
            x: States of the flow, `[n, C, D]`.
            time: `[n]`.
        """


def prefix_of(decoder: Decoder, embeds: Tensor, valid: Tensor, blocks: Sequence[int]) -> Prefix:
    """Run the stack of the prefix.

    Args:
        decoder: The stack.
        embeds: `[n, P, H]`.
        valid: Which places are no padding, bool `[n, P]`.
        blocks: Number of the block of each place, P of them: a place sees its own block and those
            before it. The mean is over the first block.
    """
    block = torch.tensor(blocks, device=embeds.device)
    seen = valid[:, None, :] & (block[None, :] <= block[:, None])
    # A place of padding that sees nothing would be NaN.
    seen = seen | torch.eye(len(blocks), dtype=torch.bool, device=embeds.device)
    hidden, memory = decoder(embeds, positions_of(valid), seen.unsqueeze(1))
    counted = (valid & (block == block[0])).unsqueeze(-1).to(hidden.dtype)
    return Prefix(memory, valid, (hidden * counted).sum(1) / counted.sum(1))


def suffix_of(
    decoder: Decoder, prefix: Prefix, embeds: Tensor, causal: bool, cond: Tensor | None = None
) -> tuple[Tensor, list[KeysValues]]:
    """Run the stack of the expert on places after the prefix.

    Args:
        decoder: The stack.
        prefix: What stands before.
        embeds: `[n, T, W]`.
        causal: A place sees those before it; else all T.
        cond: What norms depend on.

    Returns:
        Hidden states `[n, T, W]`, and keys and values of each layer.
    """
    count = embeds.shape[1]
    own = torch.ones(count, count, dtype=torch.bool, device=embeds.device)
    own = (own.tril() if causal else own).expand(len(embeds), -1, -1)
    seen = torch.cat([prefix.valid[:, None, :].expand(-1, count, -1), own], -1)
    places = torch.arange(count, device=embeds.device)
    positions = prefix.valid.sum(1, keepdim=True) + places
    return decoder(embeds, positions, seen.unsqueeze(1), prefix.memory, cond)


def extended(prefix: Prefix, memory: Sequence[KeysValues]) -> Prefix:
    """Return a prefix with further places, all of them valid."""
    count = memory[0][0].shape[2]
    joined = [
        (torch.cat([keys, more], 2), torch.cat([values, others], 2))
        for (keys, values), (more, others) in zip(prefix.memory, memory, strict=True)
    ]
    return prefix._replace(
        memory=joined, valid=functional.pad(prefix.valid, (0, count), value=True)
    )


def positions_of(valid: Tensor) -> Tensor:
    """Return positions that count only what is there, `[n, P]`."""
    return (valid.long().cumsum(1) - 1).clamp(min=0)


def embedded_time(time: Tensor, like: nn.Linear) -> Tensor:
    """Return the embedding of times as wide as the output of a layer, in its number format."""
    return time_embedding(time, like.out_features, PERIODS).to(like.weight.dtype)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return `layer(x)`, x brought to the number format of the layer."""
    return layer(x.to(layer.weight.dtype))
