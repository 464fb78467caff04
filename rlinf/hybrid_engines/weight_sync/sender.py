"""The actor's side of a weight update: each rank sends what it has, in buckets with checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlinf.hybrid_engines.weight_sync.checksum import checksum
from rlinf.hybrid_engines.weight_sync.packing import format_of, layout_for, pack
from rlinf.hybrid_engines.weight_sync.patches import Patch, difference
from rlinf.hybrid_engines.weight_sync.plan import PartPlace, Request, Stream, streams, turns
from rlinf.hybrid_engines.weight_sync.staging import Staging
from rlinf.utils.shards import ShardPlace, Shards, own_part, own_rows

LIMITS = {"cuda": 2 << 30}
"""Most bytes of a message by device of the weights, where nothing else is said."""
_LIMIT = 512 << 20

Part = tuple[str, Tensor, PartPlace]
"""Name of a tensor, some of its rows, and where they belong."""
Bucket = dict[str, tuple[Tensor, PartPlace]]
"""Parts of tensors that go in one message."""


def buckets(
    parts: Iterable[Part], limit: int | None, rounded_to: torch.dtype | None = None
) -> Iterator[Bucket]:
    """Group parts into messages of at most `limit` bytes; a larger one goes alone."""
    bucket: Bucket = {}
    size = 0
    for name, tensor, place in parts:
        if limit is None:
            limit = LIMITS.get(tensor.device.type, _LIMIT)
        more = size_of(tensor, rounded_to)
        if bucket and size + more > limit:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor, place
        size += more
    if bucket:
        yield bucket


def size_of(tensor: Tensor, rounded_to: torch.dtype | None) -> int:
    """Return the bytes of a tensor in a message."""
    return tensor.numel() * format_of(tensor, rounded_to).itemsize


class WeightSender:
    """Sends what an actor rank has of the weights to the ranks of another group that need it.

    All ranks of the actor call it alike. Receivers say first which rows they keep; those who keep
    everything get the same messages, which cross each link once, and others get their own rows and
    nothing else.

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
        self._patches = cfg.weight_syncer.type == "patch" and not once
        self._sent: dict[tuple[int, ...], tuple[int, dict[str, Tensor]]] = {}
        keeps = keeps_buffers(cfg) and not once
        self._staging = Staging(f"weights for {self._receivers}") if keeps else None

    def send(
        self,
        tensors: Shards,
        version: int,
        rounded_to: torch.dtype | None = None,
        place: ShardPlace | None = None,
    ) -> int:
        """Send this rank's part of all tensors; return the number of bytes.

        Args:
            tensors: as sharded as they are.
            version: their number.
            rounded_to: format of floating point in the messages; None leaves each as it is.
            place: which part of the model this rank has; None is all of it.
        """
        place = place or ShardPlace()
        found = self._agree(place)
        if self._staging is None:
            return sum(self._send_all(s, tensors, version, rounded_to, place) for s in found)
        try:
            self._staging.begin()
            total = sum(self._send_all(s, tensors, version, rounded_to, place) for s in found)
            self._staging.wait()
            return total
        except BaseException:
            # Who still reads what, nobody knows.
            self._staging.drop()
            raise

    def _agree(self, place: ShardPlace) -> list[Stream]:
        """Hear what receivers need, and tell them who gets what from this rank."""
        worker, group = self._worker, self._receivers
        count = worker._world_size_of(group)
        own = worker.group_name, list(range(worker.world_size))
        requests: list[Request] = [
            worker.broadcast(None, [(group, [rank]), own], (group, rank)) for rank in range(count)
        ]
        found = streams(requests, place, worker._cluster_node_rank)
        told = {rank: stream.receivers for stream in found for rank in stream.receivers}
        self._broadcast(told, list(range(count)))
        order = turns(worker.rank, worker.world_size, count)
        return sorted(found, key=lambda stream: order.index(stream.receivers[0]))

    def _broadcast(self, content: Any, receivers: list[int], async_op: bool = False) -> Any:
        worker = self._worker
        groups = [(worker.group_name, [worker.rank]), (self._receivers, receivers)]
        source = worker.group_name, worker.rank
        return worker.broadcast(content, groups, source, async_op=async_op)

    def _send_all(
        self,
        stream: Stream,
        tensors: Shards,
        version: int,
        rounded_to: torch.dtype | None,
        place: ShardPlace,
    ) -> int:
        """Send one stream; its last message says that it is the last, and may be empty."""
        if self._patches and stream.far:
            return self._send_patches(stream, tensors, version, rounded_to, place)
        total = 0
        waiting: Bucket = {}
        for bucket in buckets(_parts(stream, tensors, place), self._limit, rounded_to):
            if waiting:
                total += self._send(stream, waiting, version, rounded_to, last=False)
            waiting = bucket
        return total + self._send(stream, waiting, version, rounded_to, last=True)

    def _send_patches(
        self,
        stream: Stream,
        tensors: Shards,
        version: int,
        rounded_to: torch.dtype | None,
        place: ShardPlace,
    ) -> int:
        """Send what has changed since the version that receivers have, where that is less."""
        key = tuple(stream.receivers)
        known, old = self._sent.pop(key, (None, {}))
        if known is None or known != stream.base:
            old = {}
        new: dict[str, Tensor] = {}
        total = 0
        content: tuple[Any, ...] | None = None
        for bucket in buckets(_parts(stream, tensors, place), self._limit, rounded_to):
            if content is not None:
                self._broadcast((version, False, *content), stream.receivers)
            values: dict[str, Tensor | Patch] = {}
            for name, (tensor, _) in bucket.items():
                # Kept until the next update: training changes the weights meanwhile.
                held = tensor.to("cpu", format_of(tensor, rounded_to), copy=True)
                new[name] = held
                patch = difference(old.pop(name), held) if name in old else None
                values[name] = held if patch is None else patch
            sums = {name: checksum(new[name]) for name in values}
            content = values, sums, {name: where for name, (_, where) in bucket.items()}
            total += sum(value.nbytes for value in values.values())
        self._broadcast((version, True, *(content or ({}, {}, {}))), stream.receivers)
        self._sent[key] = version, new
        return total

    def _send(
        self,
        stream: Stream,
        bucket: Bucket,
        version: int,
        rounded_to: torch.dtype | None,
        last: bool,
    ) -> int:
        places = {name: place for name, (_, place) in bucket.items()}
        tensors = {name: tensor for name, (tensor, _) in bucket.items()}
        if tensors and on_gpu(tensors):
            if self._staging is not None:
                packed = self._staging.pack(tensors, layout_for(tensors, rounded_to), self._verify)
                content = (version, last, packed, {}, places)
                self._staging.sent(self._broadcast(content, stream.receivers, async_op=True))
            else:
                packed = pack(tensors, self._verify, rounded_to)
                self._broadcast((version, last, packed, {}, places), stream.receivers)
            return packed.layout.payload
        message = {name: t.to(format_of(t, rounded_to)) for name, t in tensors.items()}
        sums: dict[str, int] = {}
        if self._verify:
            sums = {name: checksum(tensor) for name, tensor in message.items()}
        self._broadcast((version, last, message, sums, places), stream.receivers)
        return sum(tensor.nbytes for tensor in message.values())


def _parts(stream: Stream, tensors: Shards, place: ShardPlace) -> Iterator[Part]:
    """What goes into a stream, tensor by tensor."""
    for name, tensor in tensors():
        rows = own_rows(tensor)
        if rows is None and place.member:
            # All ranks have it: the first one of a copy sends it.
            continue
        found = stream.part(name, own_part(tensor), rows, tuple(tensor.shape))
        if found is not None:
            yield name, *found


def on_gpu(bucket: Mapping[str, Tensor]) -> bool:
    """Return whether tensors go as one."""
    return all(tensor.is_cuda for tensor in bucket.values())


def keeps_buffers(cfg: Any) -> bool:
    """Return whether buffers on a GPU stay between updates.

    Not where the actor leaves the device.
    """
    wanted = cfg.weight_syncer.bucket.keep_buffers
    return not cfg.actor.enable_offload if wanted is None else wanted
