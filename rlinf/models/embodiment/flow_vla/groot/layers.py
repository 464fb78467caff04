"""Layers of GR00T's action head, under the names of its files.

Shapes: n samples, T places, S places that are attended to, W hidden units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.embodiment.flow_vla.groot.sizes import StackSizes

_TIME_CHANNELS = 256


class EmbodimentLinear(nn.Module):
    """A linear layer with weights for each of several robots, of which one is at work.

    Args:
        count: Robots.
        inputs: Numbers in.
        outputs: Numbers out.
        own: Number of the robot at work.
    """

    def __init__(self, count: int, inputs: int, outputs: int, own: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(count, inputs, outputs))
        self.b = nn.Parameter(torch.zeros(count, outputs))
        # Signals keep their size at any width; 0.02, as in Isaac-GR00T, suits large ones alone.
        nn.init.normal_(self.W, std=inputs**-0.5)
        self._own = own

    def forward(self, x: Tensor) -> Tensor:
        """Return `x W + b` of the robot, `[..., outputs]`."""
        return x.to(self.W.dtype) @ self.W[self._own] + self.b[self._own]


class EmbodimentMLP(nn.Module):
    """Two layers of a robot, with a ReLU between them; arguments as in `EmbodimentLinear`."""

    def __init__(self, count: int, inputs: int, hidden: int, outputs: int, own: int) -> None:
        super().__init__()
        self.layer1 = EmbodimentLinear(count, inputs, hidden, own)
        self.layer2 = EmbodimentLinear(count, hidden, outputs, own)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., outputs]`."""
        return self.layer2(functional.relu(self.layer1(x)))


class ActionEncoder(nn.Module):
    """Embeds noisy actions together with their time."""

    def __init__(self, count: int, inputs: int, width: int, own: int) -> None:
        super().__init__()
        self.W1 = EmbodimentLinear(count, inputs, width, own)
        self.W2 = EmbodimentLinear(count, 2 * width, width, own)
        self.W3 = EmbodimentLinear(count, width, width, own)

    def forward(self, actions: Tensor, bucket: Tensor) -> Tensor:
        """Return embeddings `[n, T, W]` of actions `[n, T, D]` and buckets of times `[n]`."""
        x = self.W1(actions)
        half = x.shape[-1] // 2
        sine, cosine = _waves(bucket, half, half)
        when = torch.cat([sine, cosine], -1).unsqueeze(1).expand_as(x)
        return self.W3(functional.silu(self.W2(torch.cat([x, when.to(x.dtype)], -1))))


class AdaptiveNorm(nn.Module):
    """A layer norm whose scale and shift are computed from a condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """Return `norm(x) (1 + scale) + shift`, `[n, T, W]`, for conditions `[n, W]`."""
        scale, shift = self.linear(functional.silu(cond)).unsqueeze(1).chunk(2, -1)
        return functional.layer_norm(x, x.shape[-1:], eps=1e-5) * (1.0 + scale) + shift


class Attention(nn.Module):
    """Attention with as many heads of keys and values as of queries.

    Args:
        sizes: Of the stack.
        memory_dim: Numbers of a place that is attended to.
    """

    def __init__(self, sizes: StackSizes, memory_dim: int) -> None:
        super().__init__()
        width = sizes.width
        self._head_dim = sizes.attention_head_dim
        self.to_q = nn.Linear(width, width)
        self.to_k, self.to_v = nn.Linear(memory_dim, width), nn.Linear(memory_dim, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what x `[n, T, W]` finds in a memory `[n, S, ...]`; see `TransformerBlock`."""
        parts = self.to_q(x), self.to_k(memory), self.to_v(memory)
        heads = (part.unflatten(-1, (-1, self._head_dim)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.to_out[0](found.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two layers with a GELU between them; where files count a dropout, nothing is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        first = nn.ModuleDict({"proj": nn.Linear(width, 4 * width)})
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        """Return `[n, T, W]`."""
        return self.net[2](functional.gelu(self.net[0]["proj"](x), approximate="tanh"))


class TransformerBlock(nn.Module):
    """Attention, then two layers.

    Args:
        sizes: Of the stack.
        memory_dim: Numbers of a place of the memory that is attended to; None attends to the own
            places.
        adaptive: The first norm depends on a condition, and the second has no weights.
    """

    def __init__(
        self, sizes: StackSizes, memory_dim: int | None = None, adaptive: bool = False
    ) -> None:
        super().__init__()
        width = sizes.width
        self._crosses = memory_dim is not None
        self.norm1 = AdaptiveNorm(width) if adaptive else nn.LayerNorm(width)
        self.attn1 = Attention(sizes, memory_dim or width)
        self.norm3 = nn.LayerNorm(width, elementwise_affine=not adaptive)
        self.ff = FeedForward(width)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        cond: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states `[n, T, W]`.

        Args:
            x: `[n, T, W]`.
            memory: What is attended to, `[n, S, memory_dim]`, if not the own places.
            mask: Which places are seen, bool, to be broadcast to `[n, heads, T, S]`; None is all.
            cond: What the first norm depends on, `[n, W]`.
        """
        normed = self.norm1(x) if cond is None else self.norm1(x, cond)
        x = x + self.attn1(normed, memory if self._crosses else normed, mask)
        return x + self.ff(self.norm3(x))


class DiffusionTransformer(nn.Module):
    """Blocks that attend to the memory and to their own places by turns, scaled by time.

    Args:
        sizes: Of the stack.
        memory_dim: Numbers of a place of the memory.
        outputs: Numbers out.
    """

    def __init__(self, sizes: StackSizes, memory_dim: int, outputs: int) -> None:
        super().__init__()
        width = sizes.width
        embedder = {
            "linear_1": nn.Linear(_TIME_CHANNELS, width),
            "linear_2": nn.Linear(width, width),
        }
        self.timestep_encoder = nn.ModuleDict({"timestep_embedder": nn.ModuleDict(embedder)})
        self.transformer_blocks = nn.ModuleList(
            TransformerBlock(sizes, memory_dim if number % 2 == 0 else None, adaptive=True)
            for number in range(sizes.num_layers)
        )
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, outputs)

    def forward(self, x: Tensor, memory: Tensor, valid: Tensor, bucket: Tensor) -> Tensor:
        """Return `[n, T, outputs]`.

        Args:
            x: `[n, T, W]`.
            memory: `[n, S, memory_dim]`.
            valid: Which places of the memory are no padding, bool `[n, S]`.
            bucket: Of the time, `[n]`.
        """
        cond, mask = self._embed(bucket), valid[:, None, None, :]
        for number, block in enumerate(self.transformer_blocks):
            x = block(x, memory, mask, cond) if number % 2 == 0 else block(x, cond=cond)
        # The other way round than in the norms of the blocks.
        shift, scale = self.proj_out_1(functional.silu(cond)).unsqueeze(1).chunk(2, -1)
        x = functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1.0 + scale) + shift
        return self.proj_out_2(x)

    def _embed(self, bucket: Tensor) -> Tensor:
        layers = self.timestep_encoder["timestep_embedder"]
        half = _TIME_CHANNELS // 2
        sine, cosine = _waves(bucket, half, half - 1)
        waves = torch.cat([cosine, sine], -1).to(layers["linear_1"].weight.dtype)
        return layers["linear_2"](functional.silu(layers["linear_1"](waves)))


def _waves(number: Tensor, count: int, over: int) -> tuple[Tensor, Tensor]:
    """Return sines and cosines of `number / 10000^(i / over)`, each `[n, count]` float32."""
    index = torch.arange(count, device=number.device, dtype=torch.float32)
    angles = number.float()[:, None] * torch.exp(-math.log(10_000.0) / over * index)
    return angles.sin(), angles.cos()
