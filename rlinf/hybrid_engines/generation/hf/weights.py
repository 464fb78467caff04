"""All weights of a model in one buffer, which the parameters of the module are views of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from rlinf.models.deferred import assign_parameters, take_deferred

_ALIGNMENT = 64
"""Elements: what starts a group of parameters starts at a multiple of it."""


class WeightArena:
    """Moves the parameters of a module into one buffer, in place.

    The module's parameters stay what they are and become views: whoever writes into them writes
    into the buffer. Parameters of a group lie without a gap, so that they can be used as one.

    Args:
        model: Its parameters are moved, its buffers follow to the device. One that was built
            without weights gets them here, tensor by tensor.
        device: Where to.
        dtype: Number format of all weights.
        groups: Names of parameters that lie side by side, in this order.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        groups: Sequence[Sequence[str]] = (),
    ):
        unique = dict(model.named_parameters())
        grouped = {name for group in groups for name in group}
        layout = [*groups, *([name] for name in unique if name not in grouped)]
        self._begin: dict[str, int] = {}
        end = 0
        for group in layout:
            end += -end % _ALIGNMENT
            for name in group:
                self._begin[name] = end
                end += unique[name].numel()
        self._buffer = torch.empty(end, dtype=dtype, device=device)
        deferred = take_deferred(model)
        values = unique.items() if deferred is None else deferred.parts(lambda name: None)
        views: dict[str, nn.Parameter] = {}
        for name, value in values:
            view = self._view(self._begin[name], value.shape)
            view.copy_(value.data)
            if deferred is None:
                value.requires_grad_(False)
                value.data = view
            else:
                views[name] = nn.Parameter(view, requires_grad=False)
        assign_parameters(model, views)
        self._own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        self._extra = {
            name: value
            for name, value in model.state_dict(keep_vars=True).items()
            if name not in self._own
        }
        self._offloaded: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.numel() * self._buffer.element_size()

    def fused(self, names: Sequence[str]) -> Tensor:
        """Return the parameters of a group as one, stacked along their first dimension.

        Args:
            names: A whole group, or the first ones of it.
        """
        parameters = [self._own[name] for name in names]
        rows = sum(parameter.shape[0] for parameter in parameters)
        return self._view(self._begin[names[0]], (rows, *parameters[0].shape[1:]))

    def load(self, named: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Copy tensors over the weights.

        Args:
            named: By names of the state dict; of weights that are tied, one is enough.

        Raises:
            WeightMismatch: A tensor is unknown, missing or of another shape, or two for the same
                weight differ.
        """
        targets = {**self._own, **self._extra}
        missing = {id(target): name for name, target in targets.items()}
        for name, tensor in named.items() if isinstance(named, Mapping) else named:
            target = targets.get(name)
            if target is None:
                raise WeightMismatch(f"{name!r} arrived, which this model does not have")
            if target.shape != tensor.shape:
                raise WeightMismatch(
                    f"{name!r} arrived as {tuple(tensor.shape)} and is {tuple(target.shape)} here; "
                    "build both from the same model section"
                )
            if missing.pop(id(target), None) is not None:
                target.data.copy_(tensor)
            elif not torch.equal(target.data, tensor.to(target.data)):
                raise WeightMismatch(f"{name!r} is tied to a weight that arrived with other values")
        if missing:
            raise WeightMismatch(f"no weights arrived for {', '.join(sorted(missing.values()))}")

    def release(self, keep: bool) -> None:
        """Free the memory of the buffer; views stay valid, but must not be read.

        Args:
            keep: Keep a copy on the host for `restore`.
        """
        if keep:
            pinned = self._buffer.is_cuda
            self._offloaded = torch.empty_like(self._buffer, device="cpu", pin_memory=pinned)
            self._offloaded.copy_(self._buffer)
        self._buffer.untyped_storage().resize_(0)

    def restore(self) -> None:
        """Take the memory back, with the values if they were kept."""
        self._buffer.untyped_storage().resize_(self.nbytes)
        if self._offloaded is not None:
            self._buffer.copy_(self._offloaded)
            self._offloaded = None

    def _view(self, begin: int, shape: Sequence[int]) -> Tensor:
        return self._buffer[begin : begin + torch.Size(shape).numel()].view(shape)
