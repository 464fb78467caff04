"""Checksums of tensors that are equal, bit for bit, on every device.

The bytes of a tensor are read as 32-bit words x_i. Each place has a weight of its own, an odd
64-bit number W_i, and the checksum is n + Σ W_i x_i modulo 2^64, with n the number of bytes.
Integers wrap around alike on a CPU and on a GPU, and their sum does not depend on its order. A
changed word always shows, since an odd weight has an inverse; two swapped words show unless their
weights agree in the last 31 bits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

_ROW = 1 << 16
"""Words whose weights share a factor. A widened row is half a megabyte, which a cache holds."""
ROW_BYTES = 4 * _ROW
"""The same in bytes."""
_ROWS_ON_DEVICE = 64
_MODULUS = 1 << 64


def checksum(tensor: Tensor) -> int:
    """Return a number of 64 bits over the bytes of a tensor, whatever device it is on."""
    return (int(share_of_checksum(tensor)) + tensor.nbytes) % _MODULUS


def share_of_checksum(tensor: Tensor, first: int = 0) -> Tensor:
    """Return what a contiguous part of a tensor adds to the checksum of the whole, int64 `[]`.

    The shares of all parts and the number of bytes of the whole add up to its checksum, modulo
    2^64.

    Args:
        tensor: the part.
        first: number of 32-bit words of the whole that come before it.
    """
    words = _words(tensor.detach())
    in_row, of_row = _weights(words.device)
    if first % _ROW:
        words = torch.nn.functional.pad(words, (first % _ROW, 0))
    whole = len(words) // _ROW
    rest = words[whole * _ROW :]
    sums = (rest * in_row[: len(rest)]).sum().unsqueeze(0)
    if whole:
        sums = torch.cat([*_row_sums(words[: whole * _ROW].view(whole, _ROW), in_row), sums])
    # The weights of rows begin anew after 16 GiB.
    places = (torch.arange(len(sums), device=words.device) + first // _ROW) % _ROW
    return (sums * of_row[places]).sum()


def checksums_of_rows(tensor: Tensor) -> Tensor:
    """Return the checksum of each `tensor[i]` of a tensor `[n, ...]`, int64 `[n]` on the host.

    They are those of `checksum`, read as signed numbers.
    """
    count = len(tensor)
    if not tensor.numel():
        return torch.zeros(count, dtype=torch.int64)
    size = tensor[0].nbytes
    data = tensor.detach().reshape(count, -1).contiguous().view(torch.uint8)
    if size % 4 or data.storage_offset() % 4:
        data = torch.nn.functional.pad(data, (0, -size % 4))
    words = data.view(torch.int32)
    in_row, of_row = _weights(words.device)
    sums = torch.full((count,), size, dtype=torch.int64, device=words.device)
    for place, part in enumerate(words.split(_ROW, dim=1)):
        sums += (part * in_row[: part.shape[1]]).sum(1) * of_row[place % _ROW]
    return sums.cpu()


def checksums_by_row(flat: Tensor, rows: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the checksums of tensors that lie end to end, in one pass and with one wait.

    Args:
        flat: their bytes, each tensor filled up with zeros to whole rows, uint8
            `[sum(rows) * ROW_BYTES]`.
        rows: rows of each.
        sizes: bytes of each.
    """
    in_row, _ = _weights(flat.device)
    totals = torch.zeros(len(rows), dtype=torch.int64, device=flat.device)
    if flat.numel():
        sums = torch.cat(list(_row_sums(flat.view(torch.int32).view(-1, _ROW), in_row)))
        owner, of_row = _owners(tuple(rows), flat.device)
        totals.index_add_(0, owner, sums * of_row)
    pairs = zip(totals.tolist(), sizes, strict=True)
    return tuple((total + size) % _MODULUS for total, size in pairs)


@lru_cache(maxsize=64)
def _owners(rows: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Whose each row is, and its weight, int64 `[sum(rows)]` each."""
    counts = torch.tensor(rows, dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(rows)), counts)
    first = (counts.cumsum(0) - counts)[owner]
    place = ((torch.arange(len(owner)) - first) % _ROW).to(device)
    return owner.to(device), _weights(device)[1][place]


def _row_sums(rows: Tensor, weights: Tensor) -> Iterator[Tensor]:
    if rows.is_cuda and _has_triton():
        from rlinf.hybrid_engines.weight_sync.checksum_kernel import row_sums

        yield row_sums(rows, weights)
        return
    at_a_time = 1 if rows.device.type == "cpu" else min(len(rows), _ROWS_ON_DEVICE)
    scratch = torch.empty((at_a_time, _ROW), dtype=torch.int64, device=rows.device)
    for part in rows.split(at_a_time):
        yield torch.mul(part, weights, out=scratch[: len(part)]).sum(1)


def _words(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor as int32, the last word filled up with zeros."""
    data = tensor.contiguous().flatten().view(torch.uint8)
    if data.storage_offset() % 4:
        data = data.clone()
    if data.numel() % 4:
        data = torch.nn.functional.pad(data, (0, -data.numel() % 4))
    return data.view(torch.int32)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _weights(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the factors of a weight by place in the row and by row, int64 `[_ROW]` each.

    They are the finaliser of SplitMix64 (Steele et al. 2014) over the numbers from 1, made odd.
    """
    z = np.arange(1, 2 * _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd = torch.from_numpy(((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64))
    return odd[:_ROW].to(device), odd[_ROW:].to(device)
