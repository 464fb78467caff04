"""Many tensors of a device as one: to hand over one takes a GPU as long as to hand over hundreds.

Each tensor begins with a row of `checksum`'s words, so that the checksums of all of them come from
one pass over the whole, and are those that the tensors have by themselves.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.checksum import ROW_BYTES, checksums_by_row

Spec = tuple[str, tuple[int, ...], torch.dtype]
"""Name, shape and number format of a tensor in a message."""


class Place(NamedTuple):
    """Where a tensor lies.

    Attributes:
        name: of the tensor.
        shape: its sizes.
        strides: those of a contiguous tensor of this shape.
        dtype: its number format.
        begin: elements of its format before it; it begins with a row.
        nbytes: its size; zeros follow up to the next row.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    begin: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Rows that it takes."""
        return math.ceil(self.nbytes / ROW_BYTES)


class Layout:
    """Where each of some tensors lies; those of one version of the weights and the next are equal.

    Args:
        specs: the tensors in order.

    Attributes:
        places: where each lies.
        nbytes: size of the whole.
        payload: bytes of the tensors alone.
    """

    def __init__(self, specs: Sequence[Spec]):
        self._specs = tuple(specs)
        places = []
        row = 0
        for name, shape, dtype in self._specs:
            nbytes = math.prod(shape) * dtype.itemsize
            begin = row * ROW_BYTES // dtype.itemsize
            places.append(Place(name, shape, _strides(shape), dtype, begin, nbytes))
            row += places[-1].rows
        self.places = tuple(places)
        self.nbytes = row * ROW_BYTES
        self.payload = sum(place.nbytes for place in places)
        self._rows = tuple(place.rows for place in places)
        self._sizes = tuple(place.nbytes for place in places)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors, as views of their bytes, uint8 `[nbytes]`."""
        typed: dict[torch.dtype, tuple[Tensor, int]] = {}
        for dtype in {place.dtype for place in self.places}:
            whole = flat.view(dtype)
            typed[dtype] = whole, whole.storage_offset()
        views = []
        for _, shape, strides, dtype, begin, _ in self.places:
            whole, first = typed[dtype]
            views.append(whole.as_strided(shape, strides, first + begin))
        return views

    def checksums(self, flat: Tensor) -> tuple[int, ...]:
        """Return the checksum of each tensor."""
        return checksums_by_row(flat[: self.nbytes], self._rows, self._sizes)

    @cached_property
    def _pickled(self) -> bytes:
        plain = [(name, shape, str(dtype)) for name, shape, dtype in self._specs]
        return pickle.dumps(plain)

    def __reduce__(self) -> tuple[Callable[[bytes], Layout], tuple[bytes]]:
        return _unpickled, (self._pickled,)


@lru_cache(maxsize=64)
def layout_of(specs: tuple[Spec, ...]) -> Layout:
    """Return the layout of some tensors, made once."""
    return Layout(specs)


@lru_cache(maxsize=64)
def _unpickled(data: bytes) -> Layout:
    plain = pickle.loads(data)
    specs = [(n, shape, getattr(torch, d.removeprefix("torch."))) for n, shape, d in plain]
    return Layout(specs)


class Packed(NamedTuple):
    """Tensors end to end.

    Attributes:
        flat: their bytes, uint8 `[layout.nbytes]`.
        layout: where each lies.
        sums: their checksums; None without.
        lent: whether the bytes may still be the sender's, who waits until they have been read.
    """

    flat: Tensor
    layout: Layout
    sums: tuple[int, ...] | None
    lent: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, as views."""
        views = self.layout.views(self.flat)
        return {p.name: view for p, view in zip(self.layout.places, views, strict=True)}

    def changed(self) -> list[str]:
        """Return the names of the tensors that are not what was packed; none without checksums."""
        if self.sums is None:
            return []
        found = self.layout.checksums(self.flat)
        pairs = zip(self.layout.places, found, self.sums, strict=True)
        return [place.name for place, own, sent in pairs if own != sent]


class Buffer:
    """Memory that is packed into again and again, with the views that this takes.

    Args:
        flat: uint8, one-dimensional.
    """

    def __init__(self, flat: Tensor):
        self.flat = flat
        self._layout: Layout | None = None
        self._views: list[Tensor] = []

    @torch.no_grad()
    def pack(self, tensors: Mapping[str, Tensor], layout: Layout, verify: bool) -> Packed:
        """Copy tensors in; what was packed before is gone."""
        if layout is not self._layout:
            # What lies between tensors counts in their checksums.
            self.flat.zero_()
            self._layout, self._views = layout, layout.views(self.flat)
        copy_all(self._views, list(tensors.values()))
        sums = layout.checksums(self.flat) if verify else None
        return Packed(self.flat[: layout.nbytes], layout, sums)


def format_of(tensor: Tensor, rounded_to: torch.dtype | None) -> torch.dtype:
    """Return the number format of a tensor in a message: only floating point is rounded."""
    return rounded_to if rounded_to is not None and tensor.is_floating_point() else tensor.dtype


def layout_for(tensors: Mapping[str, Tensor], rounded_to: torch.dtype | None = None) -> Layout:
    """Return the layout of tensors by name; see `pack`."""
    return layout_of(
        tuple((n, tuple(t.shape), format_of(t, rounded_to)) for n, t in tensors.items())
    )


def pack(
    tensors: Mapping[str, Tensor], verify: bool, rounded_to: torch.dtype | None = None
) -> Packed:
    """Put tensors of one device end to end.

    Args:
        tensors: by name.
        verify: whether checksums go with them.
        rounded_to: format of floating point; None leaves each as it is.
    """
    layout = layout_for(tensors, rounded_to)
    device = next(iter(tensors.values())).device
    flat = torch.empty(layout.nbytes, dtype=torch.uint8, device=device)
    return Buffer(flat).pack(tensors, layout, verify)


@torch.no_grad()
def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of their shapes, with few kernels for each pair of formats."""
    pairs: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        into, out_of = pairs.setdefault((target.dtype, source.dtype), ([], []))
        into.append(target.data)
        out_of.append(source)
    for into, out_of in pairs.values():
        torch._foreach_copy_(into, out_of)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
