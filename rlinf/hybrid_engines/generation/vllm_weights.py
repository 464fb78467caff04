"""Sends weights to vLLM through its weight-transfer interface, and proves that they arrive."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BACKEND = "rlinf"
"""Name of `vllm_worker.BucketTransfer` among vLLM's ways to transfer weights."""

BUCKET_BYTES = 512 << 20
"""Bytes that are sent at a time; a larger tensor is sent by itself."""

_SHIFT = 1.25
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
        self._known: dict[str, tuple[int, ...]] = {}
        self._tied = False
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
        self._check(tensors)
        if self._tied and not self._devices:
            # On a CPU vLLM multiplies with packed copies of both, and packs what it is sent.
            tensors = tensors | {HEAD: tensors[EMBEDDING]}
        self._send(tensors.items())
        if not self._proven:
            self._prove(tensors, probe)
            self._proven = True

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

    def _check(self, tensors: dict[str, Tensor]) -> None:
        folder = self._folder
        if not self._known:
            self._known, self._tied = known_shapes(folder), ties_embeddings(folder)
        known = self._known
        may_lack = {HEAD} if self._tied else set()
        missing = known.keys() - tensors.keys() - may_lack
        unknown = tensors.keys() - known.keys() - may_lack
        if missing or unknown:
            raise WeightMismatch(
                f"weights do not fit the model in {folder}: missing {sorted(missing)[:3]}, unknown "
                f"{sorted(unknown)[:3]}"
            )
        for name, shape in known.items():
            if name in tensors and tuple(tensors[name].shape) != shape:
                raise WeightMismatch(
                    f"{name!r} arrived as {tuple(tensors[name].shape)} and is {shape} in {folder}"
                )

    def _prove(self, tensors: dict[str, Tensor], probe: Callable[[], float]) -> None:
        """Change weights of each kind and back, and look at what comes of it.

        Raises:
            WeightMismatch: A change had no effect.
        """
        before = probe()
        for kind, changed in changes(tensors, self._tied, self._prompt):
            self._send((tensors | changed).items())
            after = probe()
            self._send(tensors.items())
            again = probe()
            if after == before or not math.isclose(again, before, abs_tol=1e-3):
                raise WeightMismatch(
                    f"vLLM took new values of {kind} (such as {min(changed)}) without effect: the "
                    f"log-probability of a token was {before:.6f}, {after:.6f} with values times "
                    f"{_SHIFT:g}, and {again:.6f} with the old ones again; use another version of "
                    "vLLM, or rollout_backend hf"
                )


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


def known_shapes(folder: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a folder, by name."""
    from safetensors import safe_open

    known: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            known |= {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    if not known:
        raise ValueError(
            f"there are no *.safetensors in {folder}: save the model with "
            "model.save_pretrained(folder)"
        )
    return known


def ties_embeddings(folder: str) -> bool:
    """Return whether a model has one matrix for what goes in and what comes out."""
    from transformers import AutoConfig

    return bool(AutoConfig.from_pretrained(folder).tie_word_embeddings)


def changes(
    tensors: dict[str, Tensor], tied: bool, prompt: list[int]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Change weights of one kind after the other, each so that what a prompt gives must change.

    Args:
        tensors: All weights by name.
        tied: Whether one matrix is for what is read and for what is drawn.
        prompt: Tokens that are read.

    Yields:
        What was changed, and the changed tensors by name.
    """
    kinds: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if "embed" in name or (tied and name == HEAD):
            kind = "embeddings"
        elif name == HEAD:
            kind = "the last layer"
        else:
            kind = "matrices" if tensor.dim() > 1 else "vectors"
        kinds.setdefault(kind, []).append(name)
    for kind, names in kinds.items():
        if kind != "embeddings":
            yield kind, {name: tensors[name] * _SHIFT for name in names}
            continue
        rows = torch.ones(len(tensors[names[0]]), 1, device=tensors[names[0]].device)
        rows[prompt] = _SHIFT
        yield "embeddings of what is read", {n: (tensors[n] * rows).to(tensors[n]) for n in names}
        if tied:
            rows = 1 + _SHIFT - rows
            changed = {n: (tensors[n] * rows).to(tensors[n]) for n in names}
            yield "embeddings of what is drawn", changed


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
