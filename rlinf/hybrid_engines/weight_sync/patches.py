"""What has changed between two versions of a tensor, exactly and in few bytes.

The bits of both versions are compared number by number. One bit for each says whether it has
changed. Of those that have, the exclusive or with the old number goes, byte by byte of all of them:
high bytes, in which close numbers agree, then stand together, and deflate makes little of them. A
step of an optimiser leaves most numbers of 16 bits as they are.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LEVEL = 1
"""Of deflate: higher ones take several times as long, and save a few hundredths."""


class Patch(NamedTuple):
    """The difference of two tensors of one shape and number format.

    Attributes:
        shape: of the tensors.
        dtype: name of their number format.
        changed: one bit for each number, deflated.
        bits: what has changed in these, byte by byte, deflated.
    """

    shape: tuple[int, ...]
    dtype: str
    changed: bytes
    bits: bytes

    @property
    def nbytes(self) -> int:
        """Size of it in a message."""
        return len(self.changed) + len(self.bits)


def difference(old: Tensor, new: Tensor) -> Patch | None:
    """Return what has changed; None if the new tensor itself is not larger than that.

    Args:
        old: on the host.
        new: likewise, of the same shape and number format.
    """
    words = _words(old) ^ _words(new)
    changed = words != 0
    values = words[changed]
    planes = values.view(np.uint8).reshape(-1, new.itemsize).T
    patch = Patch(
        tuple(new.shape),
        str(new.dtype).removeprefix("torch."),
        zlib.compress(np.packbits(changed), _LEVEL),
        zlib.compress(np.ascontiguousarray(planes), _LEVEL),
    )
    return patch if patch.nbytes < new.nbytes else None


def patched(old: Tensor, patch: Patch) -> Tensor:
    """Return the new tensor.

    Args:
        old: on the host, as it was given to `difference`.
        patch: what that returned.

    Raises:
        ValueError: the tensor is another one than that.
    """
    dtype = getattr(torch, patch.dtype)
    if tuple(old.shape) != patch.shape or old.dtype is not dtype:
        raise ValueError(
            f"a patch of {patch.shape} {patch.dtype} does not fit {tuple(old.shape)} {old.dtype}"
        )
    words = _words(old).copy()
    flags = np.frombuffer(zlib.decompress(patch.changed), dtype=np.uint8)
    changed = np.unpackbits(flags, count=len(words)).astype(bool)
    planes = np.frombuffer(zlib.decompress(patch.bits), dtype=np.uint8).reshape(dtype.itemsize, -1)
    words[changed] ^= np.ascontiguousarray(planes.T).view(words.dtype).reshape(-1)
    return torch.from_numpy(words).view(dtype).view(patch.shape)


def _words(tensor: Tensor) -> np.ndarray:
    """Return the numbers of a tensor as integers, `[n]`."""
    return tensor.detach().contiguous().flatten().view(_WORDS[tensor.itemsize]).numpy()
