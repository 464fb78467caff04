"""Where observations are written: those of the steps of a rollout are rows of one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class ObsArrays(dict[str, np.ndarray]):
    """Arrays by name; what is assigned to a name is written into its array.

    Args:
        tensors: by name, on the host.

    Attributes:
        tensors: those that share their memory with the arrays.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__({key: tensor.numpy() for key, tensor in tensors.items()})
        self.tensors = tensors

    def __setitem__(self, key: str, content: Any) -> None:
        """Write content into an array, for adapters that have all rows at once."""
        self[key][...] = content

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> ObsArrays:
        """Return copies of arrays."""
        return cls({key: torch.from_numpy(array.copy()) for key, array in arrays.items()})


class ObsRows:
    """Gives observations memory: the next row of what was reserved, or memory of its own."""

    def __init__(self) -> None:
        self._rows: dict[str, Iterator[Tensor]] = {}

    def reserve(self, arrays: ObsArrays, count: int) -> ObsArrays:
        """Let the next copies be rows of one tensor per name, one after the other.

        Who keeps them all has a rollout time first, and has copied nothing. What was reserved
        before belongs to those who keep it.

        Args:
            arrays: what is copied.
            count: how often; what is copied after that has memory of its own.

        Returns:
            The first copies.
        """
        for key, array in arrays.items():
            # Not torch.empty: deterministic runs would fill it, and rows may never be used.
            block = torch.from_numpy(np.empty((count, *array.shape), array.dtype))
            self._rows[key] = iter(block.unbind())
        return self.copy(arrays)

    def copy(self, arrays: ObsArrays) -> ObsArrays:
        """Return copies of arrays."""
        if not self._rows:
            return ObsArrays.of(arrays)
        tensors = {}
        for key, array in arrays.items():
            row = next(self._rows[key], None)
            if row is None:
                row = torch.from_numpy(array.copy())
            else:
                np.copyto(row.numpy(), array)
            tensors[key] = row
        return ObsArrays(tensors)
