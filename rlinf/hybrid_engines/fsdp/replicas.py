"""Ranks that each have the whole model: gradients are added up before a step, in few messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

_MESSAGE_BYTES = 256 << 20
"""Gradients are copied into messages of about this size."""


@torch.no_grad()
def add_up_gradients(parameters: Iterable[nn.Parameter], dtype: torch.dtype | None = None) -> None:
    """Replace gradients by their sums over ranks; all ranks call it.

    A parameter without a gradient on some ranks counts as zero there; without any, it stays so.

    Args:
        parameters: those of a model, in the same order on all ranks.
        dtype: number format on the way; None is that of the parameters.
    """
    for message in _messages([p for p in parameters if p.requires_grad]):
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in message]
        present = own[0].new_tensor([p.grad is not None for p in message])
        flat = torch.cat([*(gradient.flatten() for gradient in own), present])
        if dtype is not None:
            flat = flat.to(dtype)
        dist.all_reduce(flat)
        *sums, ranks = flat.split([*(p.numel() for p in message), len(message)])
        for parameter, total, count in zip(message, sums, ranks.tolist(), strict=True):
            if count:
                parameter.grad = total.view_as(parameter).to(parameter.dtype)


def _messages(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Cut parameters into messages, each with one number format."""
    message: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        alike = not message or parameter.dtype == message[0].dtype
        if message and (not alike or size + parameter.nbytes > _MESSAGE_BYTES):
            yield message
            message, size = [], 0
        message.append(parameter)
        size += parameter.nbytes
    if message:
        yield message
