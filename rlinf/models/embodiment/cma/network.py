"""Pictures and an instruction that attend to each other, and what is remembered of both.

The order of things is that of the cross-modal attention model of Krantz et al., "Beyond the
Nav-Graph" (2020): a first GRU sees the picture as a whole; its state looks for what matters in the
instruction; that looks for what matters in the picture; a second GRU takes all of it in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.embodiment.cma.words import PADDING
from rlinf.models.embodiment.cnn_policy.encoder import strided_convolutions


class Attention(nn.Module):
    """Scaled dot-product attention of one query per sample."""

    def __init__(self, query_dim: int, content_dim: int, dim: int) -> None:
        """Make the projections.

        Args:
            query_dim: Q, numbers of what asks.
            content_dim: D, numbers of each thing that is looked at.
            dim: Numbers in queries, keys and values.
        """
        super().__init__()
        self.query = nn.Linear(query_dim, dim)
        self.key = nn.Linear(content_dim, dim)
        self.value = nn.Linear(content_dim, dim)

    def forward(self, asking: Tensor, content: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what was found, `[n, dim]`.

        Args:
            asking: `[n, Q]`.
            content: `[n, K, D]`.
            mask: Which of it there is, bool `[n, K]`; None is all.
        """
        query = self.query(asking)[:, :, None]
        scores = (self.key(content) @ query).squeeze(-1) / math.sqrt(len(query[0]))
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.float().softmax(-1).to(content.dtype)
        return (weights[:, None] @ self.value(content)).squeeze(1)


class InstructionEncoder(nn.Module):
    """Words, each with those before it."""

    def __init__(self, words: int, word_dim: int, out_dim: int) -> None:
        """Make the embedding and a GRU.

        Args:
            words: That there are, padding not counted.
            word_dim: Numbers that describe one.
            out_dim: D, numbers that describe one in its place.
        """
        super().__init__()
        self.embedding = nn.Embedding(words + 1, word_dim, padding_idx=PADDING)
        self.cell = nn.GRUCell(word_dim, out_dim)

    def forward(self, words: Tensor) -> Tensor:
        """Return `[n, W, D]` for words `[n, W]`; what is at places of padding means nothing."""
        embedded = self.embedding(words.t())
        length, count = embedded.shape[:2]
        nothing = embedded.new_zeros(count, self.cell.hidden_size)
        goes_on = torch.zeros(length, count, 1, dtype=torch.bool, device=words.device)
        states = unroll(self.cell, embedded.flatten(0, 1), nothing, goes_on)
        return states.unflatten(0, (length, count)).transpose(0, 1)


class PictureEncoder(nn.Module):
    """A picture as a grid of places, each of which knows where it is."""

    def __init__(self, in_channels: int, channels: Sequence[int], image_size: int) -> None:
        """Make the layers; see `strided_convolutions`."""
        super().__init__()
        self.convolutions, side = strided_convolutions(in_channels, channels, image_size)
        self.places = nn.Parameter(torch.randn(side * side, channels[-1]) * 0.1)

    def forward(self, images: Tensor) -> Tensor:
        """Return places `[n, K, D]` of pictures `[n, H, W, C]` uint8."""
        pixels = images.permute(0, 3, 1, 2).to(self.places.dtype)
        seen = self.convolutions(pixels * (2.0 / 255.0) - 1.0)
        return seen.flatten(2).transpose(1, 2) + self.places


class Remembered(NamedTuple):
    """What the network makes of sequences.

    Attributes:
        features: Of each step, `[n, H]`.
        memory: After the last step of each sequence, `[sequences, M]` float32.
    """

    features: Tensor
    memory: Tensor


class CrossModalNetwork(nn.Module):
    """Pictures and instructions of sequences of steps to features of each step.

    Attributes:
        memory_width: M, numbers that it remembers from one step to the next.
    """

    def __init__(
        self,
        pictures: PictureEncoder,
        instructions: InstructionEncoder,
        rnn_size: int,
        attention_dim: int,
    ) -> None:
        """Put the parts together.

        Args:
            pictures: See `PictureEncoder`.
            instructions: See `InstructionEncoder`.
            rnn_size: H, numbers that each GRU remembers.
            attention_dim: Numbers in queries, keys and values.
        """
        super().__init__()
        seen, told = pictures.places.shape[1], instructions.cell.hidden_size
        self.pictures, self.instructions = pictures, instructions
        self.first = nn.GRUCell(seen, rnn_size)
        self.to_words = Attention(rnn_size, told, attention_dim)
        self.to_places = Attention(attention_dim, seen, attention_dim)
        self.second = nn.GRUCell(rnn_size + 2 * attention_dim, rnn_size)
        self.memory_width = 2 * rnn_size

    def forward(
        self, images: Tensor, words: Tensor, memory: Tensor, begins: Tensor, steps: int
    ) -> Remembered:
        """Go through sequences of `steps` steps; all tensors `[n, ...]` have time first.

        Args:
            images: `[n, H, W, C]` uint8, n = steps * sequences.
            words: `[n, W]`.
            memory: Before the first step of each sequence, `[sequences, M]`.
            begins: Where an episode begins, so that nothing is remembered, bool `[n]`.
            steps: Of each sequence.
        """
        begins = begins.unflatten(0, (steps, -1))[..., None]
        places = self.pictures(images)
        before = memory.to(places.dtype).chunk(2, 1)
        told = self.instructions(words)
        overview = unroll(self.first, places.mean(1), before[0], begins)
        matters = self.to_words(overview, told, words != PADDING)
        found = self.to_places(matters, places)
        whole = torch.cat([overview, matters, found], 1)
        features = unroll(self.second, whole, before[1], begins)
        last = [state.unflatten(0, (steps, -1))[-1] for state in (overview, features)]
        return Remembered(features, torch.cat(last, 1).float())


def unroll(cell: nn.GRUCell, inputs: Tensor, state: Tensor, begins: Tensor) -> Tensor:
    """Return the states of a GRU after each step of sequences, `[n, H]`.

    What does not depend on the state is computed for all steps at once.

    Args:
        cell: The GRU.
        inputs: `[n, D]`, time first.
        state: Before the first step, `[sequences, H]`.
        begins: Where it starts from zero, bool `[steps, sequences, 1]`.
    """
    given = functional.linear(inputs, cell.weight_ih, cell.bias_ih)
    states = []
    for step, begin in zip(given.unflatten(0, begins.shape[:2]), begins, strict=True):
        state = state.masked_fill(begin, 0)
        own = functional.linear(state, cell.weight_hh, cell.bias_hh)
        reset, update, new = step.chunk(3, 1)
        own_reset, own_update, own_new = own.chunk(3, 1)
        new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        state = torch.lerp(new, state, (update + own_update).sigmoid())
        states.append(state)
    return torch.cat(states)
