"""Many tensors of a device as one: to hand over one takes a GPU as long as to hand over hundreds.

Each tensor begins with a row of `checksum`'s words, so that the checksums of all of them come from
one pass over the whole, and are those that the tensors have by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.checksum import ROW_BYTES, checksums_by_row


class Place(NamedTuple):
    """Where a tensor lies.

    Attributes:
        name: of the tensor.
        shape: its sizes.
        dtype: name of its number format in torch.
        row: the first of its rows.
        nbytes: its size; zeros follow up to the next row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    row: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Rows that it takes."""
        return math.ceil(self.nbytes / ROW_BYTES)


class Packed(NamedTuple):
    """Tensors end to end.

    Attributes:
        flat: their bytes, uint8 `[rows * ROW_BYTES]`.
        places: where each lies.
        sums: their checksums; None without.
    """

    flat: Tensor
    places: tuple[Place, ...]
    sums: tuple[int, ...] | None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, as views."""
        return {place.name: _view(self.flat, place) for place in self.places}

    def changed(self) -> list[str]:
        """Names of the tensors that are not what was packed; none without checksums."""
        if self.sums is None:
            return []
        found = _checksums(self.flat, self.places)
        pairs = zip(self.places, found, self.sums, strict=True)
        return [place.name for place, own, sent in pairs if own != sent]


def format_of(tensor: Tensor, rounded_to: torch.dtype | None) -> torch.dtype:
    """The number format of a tensor in a message: only floating point is rounded."""
    return rounded_to if rounded_to is not None and tensor.is_floating_point() else tensor.dtype


@torch.no_grad()
def pack(
    tensors: Mapping[str, Tensor], verify: bool, rounded_to: torch.dtype | None = None
) -> Packed:
    """Puts tensors of one device end to end.

    Args:
        tensors: by name.
        verify: whether checksums go with them.
        rounded_to: format of floating point; None leaves each as it is.
    """
    places: list[Place] = []
    row = 0
    for name, tensor in tensors.items():
        dtype = format_of(tensor, rounded_to)
        size = tensor.numel() * dtype.itemsize
        shape = tuple(tensor.shape)
        places.append(Place(name, shape, str(dtype).removeprefix("torch."), row, size))
        row += places[-1].rows
    device = next(iter(tensors.values())).device
    flat = torch.zeros(row * ROW_BYTES, dtype=torch.uint8, device=device)
    copy_all([_view(flat, place) for place in places], list(tensors.values()))
    return Packed(flat, tuple(places), _checksums(flat, places) if verify else None)


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies tensors into others of their shapes, with few kernels for each pair of formats."""
    pairs: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = pairs.setdefault((target.dtype, source.dtype), ([], []))
        into.append(target.data)
        out_of.append(source)
    for into, out_of in pairs.values():
        torch._foreach_copy_(into, out_of)


def _view(flat: Tensor, place: Place) -> Tensor:
    begin = place.row * ROW_BYTES
    return flat[begin : begin + place.nbytes].view(getattr(torch, place.dtype)).view(place.shape)


def _checksums(flat: Tensor, places: Sequence[Place]) -> tuple[int, ...]:
    return checksums_by_row(
        flat, [place.rows for place in places], [place.nbytes for place in places]
    )
