"""The actor's side of a weight update: buckets of tensors, a version, and checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.checksum import checksum
from rlinf.hybrid_engines.weight_sync.packing import Packed, format_of, pack

_LIMITS = {"cuda": 2 << 30}
_LIMIT = 512 << 20


def buckets(
    tensors: Iterable[tuple[str, Tensor]],
    limit: int | None,
    rounded_to: torch.dtype | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Groups tensors into messages of at most `limit` bytes; a larger tensor goes alone."""
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if limit is None:
            limit = _LIMITS.get(tensor.device.type, _LIMIT)
        more = size_of(tensor, rounded_to)
        if bucket and size + more > limit:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor
        size += more
    if bucket:
        yield bucket


def size_of(tensor: Tensor, rounded_to: torch.dtype | None) -> int:
    """Bytes of a tensor in a message."""
    return tensor.numel() * format_of(tensor, rounded_to).itemsize


class WeightSender:
    """Sends weights from one actor rank to all ranks of another group.

    Args:
        worker: the actor.
        cfg: the configuration.
        group: name of the group that receives; None is the rollout.
    """

    def __init__(self, worker: Any, cfg: Any, group: str | None = None):
        self._worker = worker
        self._limit = cfg.weight_syncer.bucket.bucket_size
        self._verify = cfg.weight_syncer.verify
        self._receivers = cfg.rollout.group_name if group is None else group
        self._groups: list[tuple[str, Any]] | None = None

    def send(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        rounded_to: torch.dtype | None = None,
    ) -> int:
        """Broadcasts all tensors; returns the number of bytes.

        Args:
            tensors: with their names.
            version: their number.
            rounded_to: format of floating point in the messages; None leaves each as it is.
        """
        if self._groups is None:
            size = self._worker._world_size_of(self._receivers)
            own = (self._worker.group_name, [self._worker.rank])
            self._groups = [own, (self._receivers, list(range(size)))]
        total = 0
        waiting: dict[str, Tensor] | None = None
        for bucket in buckets(tensors, self._limit, rounded_to):
            if waiting is not None:
                total += self._send(waiting, version, rounded_to, last=False)
            waiting = bucket
        if waiting is not None:
            total += self._send(waiting, version, rounded_to, last=True)
        return total

    def _send(
        self,
        bucket: dict[str, Tensor],
        version: int,
        rounded_to: torch.dtype | None,
        last: bool,
    ) -> int:
        source = (self._worker.group_name, self._worker.rank)
        size = sum(size_of(tensor, rounded_to) for tensor in bucket.values())
        message: Packed | dict[str, Tensor]
        sums: dict[str, int] = {}
        if all(tensor.is_cuda for tensor in bucket.values()):
            message = pack(bucket, self._verify, rounded_to)
        else:
            message = {name: t.to(format_of(t, rounded_to)) for name, t in bucket.items()}
            if self._verify:
                sums = {name: checksum(tensor) for name, tensor in message.items()}
        self._worker.broadcast((version, last, message, sums), self._groups, source)
        return size
