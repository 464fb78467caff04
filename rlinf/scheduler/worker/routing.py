"""Re-sharding: a batch that is spread over one group arrives spread over another, in rank order.

Both groups hold equal, contiguous shares of the same batch. Which ranks talk to each other follows
from the sizes of the groups alone: shares overlap or they do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class BatchError(ValueError):
    """A batch cannot be divided as asked."""


class CommMapper:
    """Who sends how much to whom."""

    @staticmethod
    def get_dst_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, src_rank: int
    ) -> list[tuple[int, int]]:
        """[(destination rank, number of samples), ...] of a sender, in order.

        Raises:
            BatchError: the batch does not divide by one of the world sizes.
        """
        _check(batch_size, src_world_size, "sending")
        _check(batch_size, dst_world_size, "receiving")
        return _overlaps(batch_size, src_world_size, dst_world_size, src_rank)

    @staticmethod
    def get_src_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, dst_rank: int
    ) -> list[tuple[int, int]]:
        """[(source rank, number of samples), ...] of a receiver, in order.

        Raises:
            BatchError: the batch does not divide by one of the world sizes.
        """
        _check(batch_size, src_world_size, "sending")
        _check(batch_size, dst_world_size, "receiving")
        return _overlaps(batch_size, dst_world_size, src_world_size, dst_rank)


@functools.lru_cache(maxsize=4096)
def _overlaps(batch_size: int, mine: int, theirs: int, rank: int) -> list[tuple[int, int]]:
    begin, end = rank * batch_size // mine, (rank + 1) * batch_size // mine
    out = []
    for other in range(theirs):
        low, high = other * batch_size // theirs, (other + 1) * batch_size // theirs
        size = min(end, high) - max(begin, low)
        if size > 0:
            out.append((other, size))
    return out


def _check(batch_size: int, world_size: int, side: str) -> None:
    if batch_size <= 0 or batch_size % world_size:
        raise BatchError(
            f"a batch of {batch_size} cannot be shared equally by the {world_size} workers of the "
            f"{side} group: {batch_size} = {batch_size // world_size} x {world_size} + "
            f"{batch_size % world_size}; choose a batch that divides by {world_size}"
        )


def partners(mine: int, theirs: int, rank: int) -> list[int]:
    """Return the ranks of another group whose share overlaps that of `rank`, in order."""
    return [other for other, _ in _overlaps(mine * theirs, mine, theirs, rank)]


# -- batches --------------------------------------------------------------------------------------


def infer_batch_size(data: Any) -> int:
    """Return the number of samples in a batch: the length of its tensors, arrays and lists.

    Raises:
        BatchError: the parts disagree, or there is nothing to count.
    """
    sizes = sorted(set(_sizes(data)))
    if len(sizes) != 1:
        found = f"lengths {sizes}" if sizes else "nothing with a length"
        raise BatchError(f"the batch size is not clear: the data has {found}; give batch_size")
    return sizes[0]


def _sizes(data: Any) -> list[int]:
    if isinstance(data, Mapping):
        return [size for value in data.values() for size in _sizes(value)]
    if _is_array(data):
        return [int(data.shape[0])] if data.ndim else []
    if isinstance(data, (list, tuple)):
        return [len(data)]
    return []


def split_batch(data: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut a batch along its first dimension; scalars and None go to each part.

    Args:
        data: tensor, array, list, or a mapping of such.
        sizes: sizes of the parts.

    Raises:
        BatchError: the data is not as long as the parts together.
    """
    if isinstance(data, Mapping):
        columns = {key: split_batch(value, sizes) for key, value in data.items()}
        return [{key: parts[i] for key, parts in columns.items()} for i in range(len(sizes))]
    countable = (_is_array(data) and data.ndim) or isinstance(data, (list, tuple))
    if not countable:
        return [data for _ in sizes]
    length = len(data)
    if length != sum(sizes):
        raise BatchError(
            f"a part of the batch has length {length}, but {sum(sizes)} are to be sent"
        )
    out, start = [], 0
    for size in sizes:
        out.append(data[start : start + size])
        start += size
    return out


def merge_batches(parts: Sequence[Any]) -> Any:
    """Inverse of `split_batch`."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Mapping):
        keys = set(first)
        if any(set(part) != keys for part in parts):
            raise BatchError(f"parts of a batch have different keys: {[sorted(p) for p in parts]}")
        return {key: merge_batches([part[key] for part in parts]) for key in first}
    if _is_array(first) and first.ndim:
        return _concatenate(parts)
    if isinstance(first, (list, tuple)):
        return type(first)(item for part in parts for item in part)
    return first


def _concatenate(parts: Sequence[Any]) -> Any:
    if type(parts[0]).__module__.startswith("numpy"):
        import numpy

        return numpy.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def _is_array(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "ndim")


SplitFn = Callable[[Any, Sequence[int]], list[Any]]
MergeFn = Callable[[Sequence[Any]], Any]
