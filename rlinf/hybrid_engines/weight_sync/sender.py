"""The actor's side of a weight update: buckets of tensors, a version, and checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.checksum import checksum
from rlinf.hybrid_engines.weight_sync.packing import format_of, layout_for, pack
from rlinf.hybrid_engines.weight_sync.staging import Staging

LIMITS = {"cuda": 2 << 30}
"""Most bytes of a message by device of the weights, where nothing else is said."""
_LIMIT = 512 << 20


def buckets(
    tensors: Iterable[tuple[str, Tensor]],
    limit: int | None,
    rounded_to: torch.dtype | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Group tensors into messages of at most `limit` bytes; a larger tensor goes alone."""
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if limit is None:
            limit = LIMITS.get(tensor.device.type, _LIMIT)
        more = size_of(tensor, rounded_to)
        if bucket and size + more > limit:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor
        size += more
    if bucket:
        yield bucket


def size_of(tensor: Tensor, rounded_to: torch.dtype | None) -> int:
    """Return the bytes of a tensor in a message."""
    return tensor.numel() * format_of(tensor, rounded_to).itemsize


class WeightSender:
    """Sends weights from one actor rank to all ranks of another group.

    Args:
        worker: the actor.
        cfg: the configuration.
        group: name of the group that receives; None is the rollout.
        once: nothing is kept for a next time.
    """

    def __init__(self, worker: Any, cfg: Any, group: str | None = None, once: bool = False):
        self._worker = worker
        self._limit = cfg.weight_syncer.bucket.bucket_size
        self._verify = cfg.weight_syncer.verify
        self._receivers = cfg.rollout.group_name if group is None else group
        self._groups: list[tuple[str, Any]] | None = None
        keeps = keeps_buffers(cfg) and not once
        self._staging = Staging(f"weights for {self._receivers}") if keeps else None

    def send(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        rounded_to: torch.dtype | None = None,
    ) -> int:
        """Broadcast all tensors; return the number of bytes.

        Args:
            tensors: with their names.
            version: their number.
            rounded_to: format of floating point in the messages; None leaves each as it is.
        """
        if self._groups is None:
            size = self._worker._world_size_of(self._receivers)
            own = (self._worker.group_name, [self._worker.rank])
            self._groups = [own, (self._receivers, list(range(size)))]
        if self._staging is None:
            return self._send_all(tensors, version, rounded_to)
        try:
            self._staging.begin()
            total = self._send_all(tensors, version, rounded_to)
            self._staging.wait()
            return total
        except BaseException:
            # Who still reads what, nobody knows.
            self._staging.drop()
            raise

    def _send_all(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        rounded_to: torch.dtype | None,
    ) -> int:
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
        if on_gpu(bucket):
            if self._staging is not None:
                packed = self._staging.pack(bucket, layout_for(bucket, rounded_to), self._verify)
                content = (version, last, packed, {})
                work = self._worker.broadcast(content, self._groups, source, async_op=True)
                self._staging.sent(work)
            else:
                packed = pack(bucket, self._verify, rounded_to)
                self._worker.broadcast((version, last, packed, {}), self._groups, source)
            return packed.layout.payload
        message = {name: t.to(format_of(t, rounded_to)) for name, t in bucket.items()}
        sums: dict[str, int] = {}
        if self._verify:
            sums = {name: checksum(tensor) for name, tensor in message.items()}
        self._worker.broadcast((version, last, message, sums), self._groups, source)
        return sum(tensor.nbytes for tensor in message.values())


def on_gpu(bucket: Mapping[str, Tensor]) -> bool:
    """Return whether tensors go as one."""
    return all(tensor.is_cuda for tensor in bucket.values())


def keeps_buffers(cfg: Any) -> bool:
    """Return whether buffers on a GPU stay between updates.

    Not where the actor leaves the device.
    """
    wanted = cfg.weight_syncer.bucket.keep_buffers
    return not cfg.actor.enable_offload if wanted is None else wanted
