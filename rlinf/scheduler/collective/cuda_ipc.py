"""Hand a CUDA tensor to another process on the same GPU as a handle instead of its bytes.

The sender's :class:`CudaExporter` turns a tensor into a small :class:`CudaToken` and keeps the
tensor until the reader has released it. The reader's :func:`import_tensor` opens the memory and,
by default, copies it into its own with one copy on the device. Both plug into the codec::

    exporter = CudaExporter()
    with exporter.sending_to("rollout:0") as hook:
        message = encode(obj, device_hook=hook)
    ...
    obj = decode(*message, device_hook=CudaImporter(released.append))
    exporter.release(token_id)  # for each id in released, sent back to the sender

Handles and events are torch's (``torch.multiprocessing.reductions``): the reader's stream waits
for what the sender's current stream had queued when the tensor was exported. So export in the
thread that made the tensor, and do not write to the tensor before it is released.

Devices are matched by UUID: the same GPU may have another index in the other process. Memory that
cannot be shared is left to the codec, which sends it through the host.

To open and to close memory takes milliseconds. A :class:`MemoryLease` is memory that readers keep
open between messages: they get the sender's memory itself, and the sender has to know when it is
read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import torch
from torch.multiprocessing import reductions

_MAX_SHARES = 256
"""Shares of one storage before copies of it are shared: torch wraps the storage once more each
time, and frees such a chain recursively."""


class CannotShareError(RuntimeError):
    """The driver or the allocator cannot share some memory with another process."""


class CudaToken(NamedTuple):
    """What the reader needs to open a tensor; small and picklable."""

    id: int
    """Identity within the exporter; what the reader releases."""
    device_uuid: str
    arguments: tuple
    """Arguments of torch's ``rebuild_cuda_tensor``."""


class LeaseToken(NamedTuple):
    """The first elements of a :class:`MemoryLease`; the same memory is opened once."""

    lease: CudaToken
    """The whole of it."""
    slot: str
    count: int
    """Elements from the first on."""

    @property
    def id(self) -> int:
        """Identity of the lease within the exporter."""
        return self.lease.id


class _Exported(NamedTuple):
    tensor: torch.Tensor
    token: CudaToken
    owner: Hashable


class MemoryLease:
    """Memory of this process that its readers keep open, as long as this object lives.

    A message with the tensor, or with a first part of it, has a :class:`LeaseToken` instead. The
    reader sees the memory as it is when it reads, so the sender must not write before it has read.

    Args:
        tensor: One-dimensional, with a storage of its own.
        slot: What it is for. A reader keeps one lease open for each slot of a sender.
    """

    def __init__(self, tensor: torch.Tensor, slot: str) -> None:
        self.tensor = tensor
        self.slot = slot
        # The storage lives as long as this does, so nothing else has its address.
        _leases[tensor.untyped_storage()._cdata] = self


_leases: weakref.WeakValueDictionary[int, MemoryLease] = weakref.WeakValueDictionary()


@functools.cache
def visible_devices() -> dict[str, int]:
    """UUID and local index of every GPU that this process sees."""
    return {_uuid(index): index for index in range(torch.cuda.device_count())}


class CudaExporter:
    """The sender's side: makes tokens and keeps the memory behind them alive. Thread-safe."""

    def __init__(self) -> None:
        """Create an exporter that holds nothing."""
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._exported: dict[int, _Exported] = {}
        self._shares: dict[int, tuple[reductions.StorageWeakRef, int]] = {}
        self._leased: dict[tuple[Hashable, str], tuple[weakref.ref[MemoryLease], CudaToken]] = {}
        self._warned = False

    def lend(self, tensor: torch.Tensor, owner: Hashable) -> LeaseToken | None:
        """Make a token for a first part of a :class:`MemoryLease`; None for any other tensor.

        All that the current stream has been asked for is done when it returns: an event of torch's
        is waited for only when the memory is opened.
        """
        lease = _leases.get(tensor.untyped_storage()._cdata)
        if lease is None or not _begins(lease.tensor, tensor):
            return None
        key = (owner, lease.slot)
        with self._lock:
            known, token = self._leased.get(key, (None, None))
        if token is None or known is None or known() is not lease:
            token = self._share(lease.tensor)
            with self._lock:
                self._leased[key] = weakref.ref(lease), token
        with torch.cuda.device(tensor.device):
            torch.cuda.current_stream().synchronize()
        return LeaseToken(token, lease.slot, tensor.numel())

    def export(self, tensor: torch.Tensor, owner: Hashable = None) -> CudaToken:
        """Make a token for one reader and keep the tensor until it is released.

        Args:
            tensor: A CUDA tensor of any strides. It arrives without gradient.
            owner: Tag of the reader, for :meth:`release_all_for`.

        Raises:
            ValueError: The tensor is not on a CUDA device.
            CannotShareError: The driver or the allocator cannot share this memory.
        """
        if not tensor.is_cuda:
            raise ValueError(f"CUDA IPC needs a CUDA tensor, not one on {tensor.device}")
        tensor = tensor.detach()
        if self._count_share(tensor) > _MAX_SHARES:
            with torch.cuda.device(tensor.device):
                tensor = tensor.clone()
        token = self._share(tensor)
        with self._lock:
            self._exported[token.id] = _Exported(tensor, token, owner)
        return token

    def _share(self, tensor: torch.Tensor) -> CudaToken:
        with torch.cuda.device(tensor.device):
            try:
                _, arguments = reductions.reduce_tensor(tensor)
            except RuntimeError as error:
                raise CannotShareError(
                    f"cannot share {tuple(tensor.shape)} {tensor.dtype} on {tensor.device} by CUDA "
                    f"IPC: {error}. Memory that was itself received by IPC must be cloned first; "
                    "with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True sharing depends on the "
                    "driver."
                ) from error
        return CudaToken(next(self._ids), _uuid(tensor.device.index), arguments)

    @contextlib.contextmanager
    def sending_to(
        self, owner: Hashable
    ) -> Iterator[Callable[[torch.Tensor], CudaToken | LeaseToken | None]]:
        """Give the codec's hook for a message to one reader; if that fails, keep nothing of it.

        Tensors on other than CUDA devices, and those that cannot be shared, are left to the codec.
        """
        made: list[CudaToken] = []

        def hook(tensor: torch.Tensor) -> CudaToken | LeaseToken | None:
            if not tensor.is_cuda:
                return None
            try:
                lent = self.lend(tensor, owner)
                if lent is not None:
                    return lent
                made.append(self.export(tensor, owner))
            except CannotShareError as error:
                self._warn(error)
                return None
            return made[-1]

        try:
            yield hook
        except BaseException:
            for token in made:
                self.abandon(token.id)
            raise

    def _warn(self, error: CannotShareError) -> None:
        with self._lock:
            told, self._warned = self._warned, True
        if not told:
            text = f"{error} Such tensors are sent through the host instead, which is slower."
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def release(self, token_id: int) -> None:
        """Say that the reader is done with a tensor; an unknown id is ignored."""
        with self._lock:
            self._exported.pop(token_id, None)

    def release_all_for(self, owner: Hashable) -> list[int]:
        """Take back what a reader that died still held; return the ids."""
        with self._lock:
            ids = [i for i, exported in self._exported.items() if exported.owner == owner]
            lent = [self._leased.pop(key) for key in list(self._leased) if key[0] == owner]
        for token_id in ids:
            self.abandon(token_id)
        for _, token in lent:
            # Where the lease has ended and the reader had closed it, torch may have no count of it.
            with contextlib.suppress(RuntimeError):
                _count_down(token)
        if ids or lent:
            torch.cuda.ipc_collect()
        return ids

    def held_by(self, owner: Hashable) -> list[int]:
        """Return the ids of the tokens that a reader has not released."""
        with self._lock:
            return [i for i, exported in self._exported.items() if exported.owner == owner]

    def held(self) -> dict[Hashable, int]:
        """Return the bytes that are kept for each reader."""
        totals: dict[Hashable, int] = {}
        with self._lock:
            for exported in self._exported.values():
                totals[exported.owner] = totals.get(exported.owner, 0) + exported.tensor.nbytes
        return totals

    def _count_share(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        with self._lock:
            known, count = self._shares.get(storage._cdata, (None, 0))
            if known is None:
                known = reductions.StorageWeakRef(storage)
                # A weak reference keeps the key from being used again, so drop the dead ones.
                self._shares = {k: v for k, v in self._shares.items() if not v[0].expired()}
            self._shares[storage._cdata] = known, count + 1
            return count + 1

    def abandon(self, token_id: int) -> None:
        """Drop a tensor whose reader will never count torch's own reference down."""
        with self._lock:
            exported = self._exported.pop(token_id, None)
        if exported is not None:
            _count_down(exported.token)


def _count_down(token: CudaToken) -> None:
    """Do to torch's own reference what a reader does when it closes the memory."""
    named = dict(zip(_rebuild_parameters(), token.arguments, strict=True))
    if named["storage_handle"] is not None and named["ref_counter_handle"]:
        torch.UntypedStorage._release_ipc_counter_cuda(
            named["ref_counter_handle"], named["ref_counter_offset"]
        )


def import_tensor(token: CudaToken, clone: bool = True) -> torch.Tensor:
    """Open an exported tensor.

    Args:
        token: What the exporter in the other process made.
        clone: Copy into memory of this process and return when that is done, so that the token
            can be released at once. Otherwise the result is the sender's memory itself: each
            side sees what the other writes. torch keeps it alive until the last use here.

    Raises:
        ValueError: This process does not see the GPU.
    """
    devices = visible_devices()
    if token.device_uuid not in devices:
        raise ValueError(
            f"the tensor is on GPU {token.device_uuid}, which this process does not see; visible: "
            f"{sorted(devices) or 'none'}. Use CUDA IPC only between workers on one GPU."
        )
    index = devices[token.device_uuid]
    arguments = list(token.arguments)
    arguments[_rebuild_parameters().index("storage_device")] = index
    with torch.cuda.device(index):
        tensor = reductions.rebuild_cuda_tensor(*arguments)
        if clone:
            tensor = tensor.clone()
            # The source may be freed or written to as soon as the sender hears of the release.
            torch.cuda.current_stream().synchronize()
    return tensor


class CudaImporter:
    """The reader's hook for the codec: copies tensors in and says which tokens are done with."""

    def __init__(self, on_release: Callable[[int], None]) -> None:
        """Call ``on_release`` with the id of each token, once its tensor has been copied."""
        self._on_release = on_release

    def __call__(self, token: CudaToken) -> torch.Tensor:
        """Copy the tensor of a token into memory of this process."""
        tensor = import_tensor(token)
        self._on_release(token.id)
        return tensor


def _begins(whole: torch.Tensor, part: torch.Tensor) -> bool:
    """Return whether a tensor is made of the first elements of another."""
    return (
        part.data_ptr() == whole.data_ptr()
        and part.dtype == whole.dtype
        and part.dim() == 1
        and part.is_contiguous()
    )


@functools.cache
def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


@functools.cache
def _rebuild_parameters() -> list[str]:
    return list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
