"""A reference policy that shares all frozen weights with the model that is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from rlinf.utils.shards import own_part


class InitialTensors:
    """What training changes of a model, as it was: trained weights, and buffers.

    They stay on the host. To ask the reference, they take the place of the present ones for a
    while; adapters among them, so that fresh ones, whose effect is zero, make it the bare base.

    Args:
        model: sharded or not, with its weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        named = model.named_parameters(remove_duplicate=False)
        frozen = {name for name, parameter in named if not parameter.requires_grad}
        self._tensors = {
            name: tensor.detach().clone().cpu()
            for name, tensor in model.state_dict().items()
            if name not in frozen
        }
        self._in_place = False

    @property
    def in_place(self) -> bool:
        """Whether the model is the reference now."""
        return self._in_place

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors by their names in the model, as sharded as they are there."""
        return dict(self._tensors)

    def renew(self) -> None:
        """Let the present tensors be the initial ones."""
        own = self._model.state_dict()
        for name, tensor in self._tensors.items():
            own_part(tensor).copy_(own_part(own[name]))

    @contextlib.contextmanager
    def take_their_place(self) -> Iterator[None]:
        """Let the model be the reference, and then again what it was."""
        own = self._model.state_dict()
        present = {name: own_part(own[name]).clone() for name in self._tensors}
        try:
            self._in_place = True
            self._put(self._tensors)
            yield
        finally:
            self._put(present)
            self._in_place = False

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        own = self._model.state_dict()
        for name, tensor in tensors.items():
            own_part(own[name]).copy_(own_part(tensor))
