"""The methods of a worker that exchange data with other workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.collective.broadcast import Groups
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.worker.address import WorkerAddress

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


class CommMixin:
    """Point to point and broadcast, by group name and rank.

    Objects are tensors, arrays, plain Python objects and any nest of them. Between two workers
    messages arrive in the order in which they were sent, whatever the mix of synchronous and
    asynchronous calls, and calls may come from several threads.
    """

    _runtime: ProcessRuntime

    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: Ranks,
        async_op: bool = False,
        options: Any = None,
        piggyback_payload: Any = None,
    ) -> Work | None:
        """Sends an object to a worker.

        Args:
            object: what to send; with `async_op` it must not change before the work is done.
            dst_group_name: group of the receiver.
            dst_rank: rank of the receiver.
            async_op: return a handle at once.
            options: accepted for compatibility; transports are chosen by where the workers are.
            piggyback_payload: extra that `recv` returns beside the object, as a pair.

        Raises:
            WorkerDied: the receiver has ended.
            WaitTimeout: the receiver took nothing for `cluster.timeouts.recv` seconds.
        """
        if piggyback_payload is not None:
            object = _Piggyback(object, piggyback_payload)
        peer = WorkerAddress.of(dst_group_name, dst_rank).get_name()
        work = self._runtime.mailbox.send(peer, object)
        return work if async_op else work.wait()

    def recv(
        self,
        src_group_name: str,
        src_rank: Ranks,
        async_op: bool = False,
        options: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Receives the next object from a worker.

        Args:
            src_group_name: group of the sender.
            src_rank: rank of the sender.
            async_op: return a handle at once; its `wait` gives the object.
            options: accepted for compatibility.
            timeout: deadline in seconds; `cluster.timeouts.recv` by default.

        Returns:
            The object, or (object, extra) if the sender sent an extra.

        Raises:
            WorkerDied: the sender has ended and nothing of it is left to receive.
            WaitTimeout: nothing came within the deadline.
        """
        peer = WorkerAddress.of(src_group_name, src_rank).get_name()
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
        """Sends one tensor to a worker that receives it with `recv_tensor`."""
        return self.send(tensor, dst_group_name, dst_rank, async_op)

    def recv_tensor(
        self, tensor: torch.Tensor, src_group_name: str, src_rank: Ranks, async_op: bool = False
    ) -> Any:
        """Receives a tensor in place.

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
        options: Any = None,
    ) -> Any:
        """Sends an object from one worker to all others of some groups; each of them calls this.

        Args:
            object: what to send; ignored except at the source.
            groups: `[(group name, ranks), ...]`, the same on each member; this group by default.
            src: (group name, rank) of the source; the first member by default.
            async_op: return a handle at once.
            options: accepted for compatibility.

        Returns:
            The object, on each member. At the source when all have taken it.
        """
        if groups is None:
            size = self._runtime.info.group_world_size  # type: ignore[attr-defined]
            groups = [(WorkerAddress.from_name(self._runtime.name).root_group_name, list(range(size)))]
        work = self._runtime.broadcaster.broadcast(object, groups, src)
        return work if async_op else work.wait()

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
        """Makes a channel; see `Channel.create`."""
        from rlinf.scheduler.channel.channel import Channel

        return Channel.create(channel_name, maxsize, distributed, node_rank, local, **settings)

    def connect_channel(self, channel_name: str, timeout: float | None = None) -> Channel:
        """Finds a channel by its name; see `Channel.connect`."""
        from rlinf.scheduler.channel.channel import Channel

        return Channel.connect(channel_name, timeout=timeout)


def _unwrap(value: Any) -> Any:
    return (value.obj, value.extra) if isinstance(value, _Piggyback) else value


def _copy_into(value: Any, tensor: torch.Tensor) -> torch.Tensor:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape != tensor.shape or dtype != tensor.dtype:
        raise ValueError(
            f"recv_tensor was given a tensor of {tuple(tensor.shape)} {tensor.dtype}, but "
            f"{type(value).__name__} {tuple(shape) if shape is not None else ''} {dtype or ''} came; "
            "pair send_tensor and recv_tensor with equal shapes and dtypes"
        )
    tensor.copy_(value)
    return tensor
