"""A small convolutional encoder that trains from scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.layers import HIDDEN_GAIN, activation, orthogonal_
from rlinf.utils.precise_buffers import PreciseBuffers

_GROUPS = 8


class SpatialSoftmax(PreciseBuffers):
    """Where each channel is strongest, as expected coordinates in [-1, 1] (Finn et al., 2016)."""

    rows: Tensor
    columns: Tensor

    def __init__(self, height: int, width: int) -> None:
        """Keep the coordinates of a feature map of the given size."""
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(1))  # FSDP shards no scalars
        rows, columns = torch.meshgrid(
            torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
        )
        self.register_buffer("rows", rows.reshape(-1), persistent=False)
        self.register_buffer("columns", columns.reshape(-1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, 2*K] for a feature map [n, K, H, W]."""
        weights = (x.flatten(2) * torch.exp(-self.log_temperature)).float().softmax(-1)
        return torch.cat([weights @ self.rows, weights @ self.columns], dim=1).to(x.dtype)


def strided_convolutions(
    in_channels: int, channels: Sequence[int], image_size: int
) -> tuple[nn.Sequential, int]:
    """Make convolutions with group normalisation.

    The first one divides height and width by four, every other one by two. Group normalisation
    keeps samples independent, so that acting and training agree.

    Args:
        in_channels: C, channels of an image.
        channels: Channels of each convolution.
        image_size: H and W.

    Returns:
        The layers, and height and width of the feature map.

    Raises:
        ValueError: The image is too small for so many convolutions.
    """
    layers, size, before = [], image_size, in_channels
    for index, width in enumerate(channels):
        kernel, stride = (8, 4) if index == 0 else (4, 2)
        padding = (kernel - stride) // 2
        convolution = nn.Conv2d(before, width, kernel, stride, padding, bias=False)
        orthogonal_(convolution, HIDDEN_GAIN)
        norm = nn.GroupNorm(math.gcd(width, _GROUPS), width)
        layers += [convolution, norm, nn.ReLU(inplace=True)]
        size, before = size // stride, width
    if size < 1:
        raise ValueError(
            f"images of {image_size} pixels are too small for {len(channels)} convolutions, "
            f"which divide the size by {4 * 2 ** (len(channels) - 1)}"
        )
    return nn.Sequential(*layers), size


class ConvEncoder(nn.Module):
    """Strided convolutions, then a projection; see `strided_convolutions`."""

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        image_size: int,
        feature_dim: int,
        act: str = "tanh",
        pooling: str = "flatten",
    ) -> None:
        """Make the layers.

        Args:
            in_channels: C, channels of an image.
            channels: Channels of each convolution.
            image_size: H and W.
            feature_dim: F, numbers that describe an image.
            act: Activation after the projection; convolutions have relu.
            pooling: `flatten` or `spatial_softmax`.

        Raises:
            ValueError: The image is too small for so many convolutions.
        """
        super().__init__()
        self.convolutions, size = strided_convolutions(in_channels, channels, image_size)
        if pooling == "flatten":
            self.pool, pooled = nn.Flatten(), channels[-1] * size * size
        else:
            self.pool, pooled = SpatialSoftmax(size, size), 2 * channels[-1]
        self.projection = nn.Linear(pooled, feature_dim)
        orthogonal_(self.projection, HIDDEN_GAIN)
        self.norm = nn.LayerNorm(feature_dim)
        self.act = activation(act)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [n, F].

        Args:
            images: [n, H, W, C] uint8.
        """
        pixels = images.permute(0, 3, 1, 2).to(self.projection.weight.dtype)
        x = self.convolutions(pixels * (2.0 / 255.0) - 1.0)
        return self.act(self.norm(self.projection(self.pool(x))))
