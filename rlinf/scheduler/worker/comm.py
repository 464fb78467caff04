"""The methods of a worker that exchange data with other workers."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.address import WorkerAddress
from rlinf.scheduler.collective.members import Groups
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.collective.work import Work, gather
from rlinf.scheduler.net.interrupts import shielded_methods
from rlinf.scheduler.worker.routing import (
    BatchError,
    CommMapper,
    MergeFn,
    SplitFn,
    infer_batch_size,
    merge_batches,
    partners,
    split_batch,
)

if TYPE_CHECKING:
    import torch

    from rlinf.scheduler.channel.channel import Channel
    from rlinf.scheduler.worker.runtime import ProcessRuntime

Ranks = int | list[int] | tuple[int, ...]
"""A rank, or the path of ranks to a nested worker."""


class _Piggyback:
    """An object and the small extra that travels with it."""

    __slots__ = ("obj", "extra")

    def __init__(self, obj: Any, extra: Any):
        self.obj = obj
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return _Piggyback, (self.obj, self.extra)


class _Share:
    """Joins the parts of a share and checks that they are parts of the batch that was expected."""

    def __init__(self, group_name: str, batch_size: int | None, merge_fn: MergeFn):
        self._group_name = group_name
        self._batch_size = batch_size
        self._merge_fn = merge_fn

    def join(self, messages: list[tuple[int, int, Any]]) -> Any:
        """Return the share."""
        totals = {total for total, _, _ in messages}
        wanted = {self._batch_size} if self._batch_size is not None else totals
        if len(totals) != 1 or totals != wanted:
            raise BatchError(
                f"a batch of {self._batch_size or 'one size'} was expected from group "
                f"{self._group_name!r}, but its workers sent shares of batches of {sorted(totals)}"
            )
        return self._merge_fn([part for _, _, part in messages])


@shielded_methods
class CommMixin:
    """Point to point and broadcast, by group name and rank.

    Objects are tensors, arrays, plain Python objects and any nest of them. Between two workers
    messages arrive in the order in which they were sent, whatever the mix of synchronous and
    asynchronous calls, and calls may come from several threads.
    """

    _runtime: ProcessRuntime
    _rank: int
    _world_size: int
    _group_name: str
    _group_sizes: dict[str, int]

    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        piggyback_payload: Any = None,
    ) -> Work | None:
        """Send an object to a worker.

        Args:
            object: what to send; with `async_op` it must not change before the work is done.
            dst_group_name: group of the receiver.
            dst_rank: rank of the receiver.
            async_op: return a handle at once.
            options: settings of NCCL for tensors that go from GPU to GPU; those of the first
                contact of two workers count.
            piggyback_payload: extra that `recv` returns beside the object, as a pair.

        Raises:
            WorkerDied: the receiver has ended.
            ConnectionBroken: the connection to the receiver broke, and messages are lost.
            WaitTimeout: the receiver took nothing for `cluster.timeouts.recv` seconds.
        """
        if piggyback_payload is not None:
            object = _Piggyback(object, piggyback_payload)
        peer = WorkerAddress(dst_group_name, dst_rank).get_name()
        if options is not None:
            self._runtime.endpoint.links.set_options(peer, options)
        work = self._runtime.mailbox.send(peer, object, keep=not async_op)
        return work if async_op else work.wait()

    def recv(
        self,
        src_group_name: str,
        src_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Receive the next object from a worker.

        Args:
            src_group_name: group of the sender.
            src_rank: rank of the sender.
            async_op: return a handle at once; its `wait` gives the object.
            options: may be those of the sender, which count on both sides.
            timeout: deadline in seconds; `cluster.timeouts.recv` by default.

        Returns:
            The object, or (object, extra) if the sender sent an extra.

        Raises:
            WorkerDied: the sender has ended and nothing of it is left to receive.
            ConnectionBroken: the connection to the sender broke, and messages are lost.
            WaitTimeout: nothing came within the deadline.
        """
        peer = WorkerAddress(src_group_name, src_rank).get_name()
        mailbox = self._runtime.mailbox
        work = mailbox.recv(peer, timeout=timeout)
        if async_op:
            return work.then(_unwrap)
        begin = time.perf_counter()
        value = work.wait()
        mailbox.waited(peer, begin)
        return _unwrap(value)

    def send_tensor(
        self, tensor: torch.Tensor, dst_group_name: str, dst_rank: Ranks, async_op: bool = False
    ) -> Work | None:
        """Send one tensor to a worker that receives it with `recv_tensor`."""
        return self.send(tensor, dst_group_name, dst_rank, async_op)

    def recv_tensor(
        self, tensor: torch.Tensor, src_group_name: str, src_rank: Ranks, async_op: bool = False
    ) -> Any:
        """Receive a tensor in place.

        Raises:
            ValueError: what came is no tensor of the same shape and dtype.
        """
        work = self.recv(src_group_name, src_rank, async_op=True).then(_copy_into, tensor)
        return work if async_op else work.wait()

    def broadcast(
        self,
        object: Any = None,
        groups: Groups | None = None,
        src: tuple[str, Ranks] | None = None,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        hold: bool = False,
    ) -> Any:
        """Send an object from one worker to all others of some groups; each of them calls this.

        Args:
            object: what to send; ignored except at the source.
            groups: `[(group name, ranks), ...]`, the same on each member; this group by default.
                Ranks are one rank, or a list or range of them.
            src: (group name, rank) of the source; the first member by default.
            async_op: return a handle at once.
            options: settings of NCCL, as for `send`.
            hold: receive a `Held` object; the source goes on waiting until it is given back.

        Returns:
            The object, on each member. At the source when all have taken it.
        """
        if groups is None:
            size = self._runtime.info.group_world_size  # type: ignore[attr-defined]
            own = WorkerAddress.from_name(self._runtime.name).root_group_name
            groups = [(own, range(size))]
        prefix = self._runtime.exchange.prefix  # type: ignore[attr-defined]
        work = self._runtime.broadcaster.broadcast(object, groups, src, hold, options, prefix)
        return work if async_op else work.wait()

    # -- re-sharding ----------------------------------------------------------------------------

    def send_to(
        self,
        group_name: str,
        channel: Channel | None,
        data: Any,
        *,
        route_key: Any = None,
        tag: str | None = None,
        async_op: bool = False,
        batch_size: int | None = None,
        split_fn: SplitFn = split_batch,
        ranks: Collection[int] | None = None,
    ) -> list[Work] | None:
        """Send this worker's share of a batch to a group of any size.

        All workers of this group call it, and all workers of the other one call `recv_from`; equal
        shares arrive in rank order.

        Args:
            group_name: the receiving group.
            channel: channel to send through; None sends point to point, which is faster.
            data: this worker's share: a tensor, array, list, or a mapping of such.
            route_key: keeps independent streams apart, for instance pipeline stages.
            tag: keeps kinds of data apart.
            async_op: return handles at once.
            batch_size: size of the whole batch, over all senders; by default this share's times the
                number of senders.
            split_fn: cuts the data.
            ranks: send to these only; the data then has no shares of the others, and `batch_size`
                is needed.

        Raises:
            BatchError: the batch does not divide by the number of senders or of receivers.
        """
        others = self._world_size_of(group_name)
        size, rank = self._world_size, self._rank
        total = infer_batch_size(data) * size if batch_size is None else batch_size
        plan = CommMapper.get_dst_ranks(total, size, others, rank)
        plan = [entry for entry in plan if ranks is None or entry[0] in ranks]
        parts = split_fn(data, [count for _, count in plan])
        stream = self._runtime.exchange.tag(route_key, tag)
        works = []
        for (destination, count), part in zip(plan, parts, strict=True):
            message = (total, count, part)
            if channel is None:
                peer = WorkerAddress(group_name, destination).get_name()
                works.append(self._runtime.mailbox.send(peer, message, stream))
            else:
                key = (self._group_name, group_name, stream, rank, destination)
                works.append(channel.put(message, key=key, async_op=True))
        if async_op:
            return works
        for work in works:
            work.wait()
        return None

    def recv_from(
        self,
        group_name: str,
        channel: Channel | None,
        *,
        route_key: Any = None,
        tag: str | None = None,
        async_op: bool = False,
        batch_size: int | None = None,
        merge_fn: MergeFn = merge_batches,
        ranks: Collection[int] | None = None,
    ) -> Any:
        """Receive this worker's share of a batch that another group holds; see `send_to`.

        Args:
            group_name: the sending group.
            channel: channel to receive from; None if it is sent point to point.
            route_key: as at the sender.
            tag: as at the sender.
            async_op: return a handle at once.
            batch_size: size of the whole batch, checked against what comes.
            merge_fn: joins the parts.
            ranks: receive from these only.

        Raises:
            BatchError: what comes is not the batch that was expected.
        """
        others = self._world_size_of(group_name)
        sources = partners(self._world_size, others, self._rank)
        sources = [rank for rank in sources if ranks is None or rank in ranks]
        stream = self._runtime.exchange.tag(route_key, tag)
        works: list[Work] = []
        try:
            for source in sources:
                if channel is None:
                    peer = WorkerAddress(group_name, source).get_name()
                    works.append(self._runtime.mailbox.recv(peer, stream))
                else:
                    key = (group_name, self._group_name, stream, source, self._rank)
                    works.append(channel.get(key=key, async_op=True))
        except BaseException:
            for work in works:
                work.abandon()
            raise
        expected = _Share(group_name, batch_size, merge_fn)
        work = gather(works).then(expected.join)
        return work if async_op else work.wait()

    def _world_size_of(self, group_name: str) -> int:
        size = self._group_sizes.get(group_name)
        if size is None:
            runtime = self._runtime
            size = self._group_sizes[group_name] = runtime.registry.ask(
                "group_size",
                group=group_name,
                timeout=runtime.run.timeout("recv"),
                what=f"group {group_name!r} to be launched",
            )
        return size

    # -- channels -----------------------------------------------------------------------------

    def create_channel(
        self,
        channel_name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int = 0,
        local: bool = False,
        **settings: Any,
    ) -> Channel:
        """Make a channel; see `Channel.create`."""
        from rlinf.scheduler.channel.channel import Channel

        return Channel.create(channel_name, maxsize, distributed, node_rank, local, **settings)

    def connect_channel(self, channel_name: str, timeout: float | None = None) -> Channel:
        """Find a channel by its name; see `Channel.connect`."""
        from rlinf.scheduler.channel.channel import Channel

        return Channel.connect(channel_name, timeout=timeout)


def _unwrap(value: Any) -> Any:
    return (value.obj, value.extra) if isinstance(value, _Piggyback) else value


def _copy_into(value: Any, tensor: torch.Tensor) -> torch.Tensor:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape != tensor.shape or dtype != tensor.dtype:
        raise ValueError(
            f"recv_tensor was given a tensor of {tuple(tensor.shape)} {tensor.dtype}, but "
            f"{type(value).__name__} {tuple(shape) if shape is not None else ''} {dtype or ''} "
            "came; pair send_tensor and recv_tensor with equal shapes and dtypes"
        )
    tensor.copy_(value)
    return tensor
