"""The rollout's side of a weight update: loads buckets in place and checks what it loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.weight_sync.checksum import checksum
from rlinf.hybrid_engines.weight_sync.packing import Packed, copy_all
from rlinf.utils.shards import cut, own_part, own_rows


class WeightMismatch(RuntimeError):
    """The weights that arrived are not those that were sent, or not those of this model."""


class WeightReceiver:
    """Receives weights from actor rank 0.

    Args:
        worker: the rollout worker.
        cfg: the configuration.
    """

    def __init__(self, worker: Any, cfg: Any):
        self._worker = worker
        self._actor = cfg.actor.group_name

    def receive(self, model: nn.Module) -> int:
        """Load the next version of the weights into a model and return its number.

        Raises:
            WeightMismatch: a tensor is unknown, missing, of another shape, or arrived changed.
        """
        own = _tensors(model)
        missing = set(own)
        places = _by_memory(own)
        with closing(self._buckets()) as buckets:
            for version, bucket, sums in buckets:  # noqa: B007 - the last one is returned
                if isinstance(bucket, Packed):
                    names = load_packed(own, bucket)
                else:
                    for name, tensor in bucket.items():
                        load_tensor(own, name, tensor, sums.get(name))
                    names = list(bucket)
                for name in names:
                    # What is tied here arrives under one of its names.
                    missing -= places[_memory(own[name])]
        if missing:
            raise WeightMismatch(f"no weights arrived for {', '.join(sorted(missing))}")
        return version

    def collect(self) -> tuple[dict[str, Tensor], int]:
        """Receive the next version of the weights for somebody else to load.

        Returns:
            The weights by name, and their number.

        Raises:
            WeightMismatch: a tensor arrived changed.
        """
        found: dict[str, Tensor] = {}
        with closing(self._buckets()) as buckets:
            for version, bucket, sums in buckets:  # noqa: B007 - the last one is returned
                if isinstance(bucket, Packed):
                    _require_unchanged(bucket)
                    # What was not lent belongs to this process: no copy is needed.
                    flat = bucket.flat.clone() if bucket.lent else bucket.flat
                    found |= bucket._replace(flat=flat).tensors()
                    continue
                for name, tensor in bucket.items():
                    if sums.get(name) is not None and checksum(tensor) != sums[name]:
                        raise _changed(name)
                    found[name] = tensor.clone()
        return found, version

    def _buckets(self) -> Iterator[tuple[int, dict[str, Tensor] | Packed, dict[str, int]]]:
        worker = self._worker
        groups = [(self._actor, [0]), (worker.group_name, list(range(worker.world_size)))]
        last = False
        while not last:
            held = worker.broadcast(None, groups, (self._actor, 0), hold=True)
            version, last, bucket, sums = held.obj
            if not (isinstance(bucket, Packed) and bucket.lent):
                held.give_back()
                yield version, bucket, sums
                continue
            try:
                yield version, bucket, sums
            finally:
                if bucket.flat.is_cuda:
                    # The sender writes as soon as it hears of it.
                    torch.cuda.current_stream(bucket.flat.device).synchronize()
                held.give_back()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict(keep_vars=True).items()}


def _by_memory(tensors: dict[str, Tensor]) -> dict[int, set[str]]:
    """Return the names of tensors by the memory that holds them."""
    places: dict[int, set[str]] = {}
    for name, tensor in tensors.items():
        places.setdefault(_memory(tensor), set()).add(name)
    return places


def _memory(tensor: Tensor) -> int:
    # A rank that has no row of a tensor has no memory of it.
    return own_part(tensor).data_ptr() or id(tensor)


def load_packed(own: dict[str, Tensor], packed: Packed) -> list[str]:
    """Copy tensors that came as one into their places; return their names.

    Raises:
        WeightMismatch: a tensor is unknown, of another shape, or arrived changed.
    """
    _require_unchanged(packed)
    tensors = packed.tensors()
    targets = [_target(own, name, tensor) for name, tensor in tensors.items()]
    parts = [cut(tensor, own_rows(own[name])) for name, tensor in tensors.items()]
    copy_all(targets, parts)
    return list(tensors)


def load_tensor(own: dict[str, Tensor], name: str, tensor: Tensor, expected: int | None) -> None:
    """Copy one tensor into its place and compare its checksum there."""
    target = _target(own, name, tensor)
    target.data.copy_(cut(tensor, own_rows(own[name])))
    # Weights that are cast or cut cannot be compared after it: then what arrived is.
    same = target.dtype == tensor.dtype and target.shape == tensor.shape
    loaded = target if same else tensor
    if expected is not None and checksum(loaded) != expected:
        raise _changed(name)


def _target(own: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    """Return the place of a tensor that arrived, or of the rows of it that this rank has."""
    target = own.get(name)
    if target is None:
        raise WeightMismatch(f"the actor sent {name!r}, which this model does not have")
    if target.shape != tensor.shape:
        raise WeightMismatch(
            f"{name!r} is {tuple(tensor.shape)} at the actor and {tuple(target.shape)} here; build "
            "both from the same model section"
        )
    return own_part(target)


def _require_unchanged(packed: Packed) -> None:
    for name in packed.changed():
        raise _changed(name)


def _changed(name: str) -> WeightMismatch:
    return WeightMismatch(f"{name!r} arrived changed: its checksum here is not that of the actor")
