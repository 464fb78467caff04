"""Sends weights to vLLM through its weight-transfer interface, and proves that they arrive."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from rlinf.hybrid_engines.generation.weight_proof import EMBEDDING, HEAD, KnownWeights, prove

BACKEND = "rlinf"
"""Name of `vllm_worker.BucketTransfer` among vLLM's ways to transfer weights."""

BUCKET_BYTES = 512 << 20
"""Bytes that are sent at a time; a larger tensor is sent by itself."""

_MEMORY = Path("/dev/shm")
_OFFSET, _MEMORY_HANDLE, _COUNTERS = 3, slice(7, 10), slice(11, 15)
"""Places among the arguments of torch's `rebuild_cuda_tensor`."""

Call = Callable[..., Any]
"""Calls a method of all workers of vLLM: name, then keyword arguments."""


class WeightTransfer:
    """Replaces the weights of a running vLLM.

    Args:
        call: How to call vLLM's workers.
        folder: Of the model, whose names and shapes weights must have.
        dtype: What vLLM computes in; weights are cast before they are sent.
        devices: CUDA devices of vLLM, as this process counts them; none on a CPU.
        prompt: What the probe of `send` reads.
        bucket_bytes: See `BUCKET_BYTES`.
    """

    def __init__(
        self,
        call: Call,
        folder: str,
        dtype: torch.dtype,
        devices: list[int],
        prompt: list[int],
        bucket_bytes: int = BUCKET_BYTES,
    ):
        self._call = call
        self._folder = folder
        self._dtype = dtype
        self._devices = devices
        self._prompt = prompt
        self._bucket_bytes = bucket_bytes
        self._known: KnownWeights | None = None
        self._proven = False

    def send(self, tensors: dict[str, Tensor], probe: Callable[[], float]) -> None:
        """Replace all weights.

        Args:
            tensors: By the names of the model's state dict.
            probe: Returns a log-probability that depends on all weights; with the first update it
                must follow every kind of weight.

        Raises:
            WeightMismatch: A tensor is unknown, missing or of another shape, or vLLM took weights
                without effect.
        """
        if self._known is None:
            self._known = KnownWeights(self._folder)
        self._known.check(tensors)
        if self._known.tied and not self._devices:
            # On a CPU vLLM multiplies with packed copies of both, and packs what it is sent.
            tensors = tensors | {HEAD: tensors[EMBEDDING]}
        self._send(tensors.items())
        if not self._proven:
            prove("vLLM", self._replace, probe, tensors, self._known.tied, self._prompt)
            self._proven = True

    def _replace(self, tensors: dict[str, Tensor]) -> None:
        self._send(tensors.items())

    def _send(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self._call("start_weight_update")
        with self._memory() as place:
            for group in buckets(named, self._dtype, self._bucket_bytes):
                self._call("update_weights", update_info=place(group))
        self._call("finish_weight_update")

    @contextmanager
    def _memory(self) -> Iterator[Callable[[list[tuple[str, Tensor]]], dict[str, Any]]]:
        """Give memory that vLLM's workers can see, and a function that fills it."""
        if self._devices:
            copies: dict[int, Tensor] = {}
            yield lambda group: self._on_devices(group, copies)
            copies.clear()
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
            return
        where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        with tempfile.NamedTemporaryFile(prefix="rlinf-weights-", dir=where) as file:
            yield lambda group: self._in_file(group, file.name)

    def _on_devices(
        self, group: list[tuple[str, Tensor]], copies: dict[int, Tensor]
    ) -> dict[str, Any]:
        size = _size(group, self._dtype)
        handles = {}
        for device in self._devices:
            if device not in copies or copies[device].numel() < size:
                copies[device] = torch.empty(size, dtype=torch.uint8, device=device)
            fill(copies[device], group, self._dtype)
            torch.cuda.current_stream(device).synchronize()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            handles[uuid] = exported(copies[device])
        return _described(group, self._dtype, size) | {"handles": handles}

    def _in_file(self, group: list[tuple[str, Tensor]], path: str) -> dict[str, Any]:
        size = _size(group, self._dtype)
        os.truncate(path, max(size, os.path.getsize(path)))
        fill(torch.from_file(path, shared=True, size=size, dtype=torch.uint8), group, self._dtype)
        return _described(group, self._dtype, size) | {"handles": {}, "path": path}


def buckets(
    named: Iterable[tuple[str, Tensor]], dtype: torch.dtype, most: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """Group tensors so that a group has no more than that many bytes, or one tensor."""
    group: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in named:
        more = room(tensor.numel() * _format(tensor, dtype).itemsize)
        if group and size + more > most:
            yield group
            group, size = [], 0
        group.append((name, tensor))
        size += more
    if group:
        yield group


def room(count: int) -> int:
    """Return the bytes that a tensor of so many bytes takes, so that the next one is aligned."""
    return -(-count // 16) * 16


def fill(flat: Tensor, group: list[tuple[str, Tensor]], dtype: torch.dtype) -> None:
    """Write tensors one behind the other into bytes."""
    begin = 0
    for _, tensor in group:
        kind = _format(tensor, dtype)
        count = tensor.numel() * kind.itemsize
        flat[begin : begin + count].view(kind).view(tensor.shape).copy_(tensor.detach())
        begin += room(count)


def exported(flat: Tensor) -> list[Any]:
    """Return what another process needs to open CUDA memory, in numbers and bytes."""
    _, arguments = reductions.reduce_tensor(flat)
    return [arguments[_OFFSET], *arguments[_MEMORY_HANDLE], *arguments[_COUNTERS]]


def _format(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if tensor.is_floating_point() else tensor.dtype


def _size(group: list[tuple[str, Tensor]], dtype: torch.dtype) -> int:
    return sum(room(tensor.numel() * _format(tensor, dtype).itemsize) for _, tensor in group)


def _described(group: list[tuple[str, Tensor]], dtype: torch.dtype, size: int) -> dict[str, Any]:
    return {
        "names": [name for name, _ in group],
        "formats": [str(_format(tensor, dtype)).removeprefix("torch.") for _, tensor in group],
        "shapes": [list(tensor.shape) for _, tensor in group],
        "size": size,
    }
