"""A paged cache in the memory of a GPU, for the path `triton`.

Memory is taken in chunks of equal size, `[layers, 2, blocks, kv_heads, block, D]`, when blocks are
needed, and stays where it is. Kernels find a block by its distance from the first one, which a
table on the device has for every row. All chunks are laid out alike, so this distance is the same
in all layers, and neither a new chunk nor a new block changes what a CUDA graph was captured with.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from rlinf.hybrid_engines.generation.hf.block_cache import BlockCache
from rlinf.hybrid_engines.generation.hf.kv_cache import CacheShape, Decode, Prefill

logger = logging.getLogger(__name__)

CHUNK_BYTES = 32 * 2**20
"""Most memory that is taken at a time, if a block has less; a multiple of what CUDA gives."""


class DeviceBlockCache(BlockCache):
    """Blocks of `[kv_heads, block, D]` wherever there is memory.

    See `BlockCache` for the arguments.

    Attributes:
        keys: Of each layer, those of the first chunk.
        values: Likewise.
        table: `[slots, blocks per row]` int64, how far each block is from the first one, in `UNIT`
            numbers.
    """

    fixed_span = True

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device,
        dtype: torch.dtype,
        most: int | None = None,
        reuse: bool = True,
    ):
        super().__init__(shape, device, dtype, most, reuse)
        fit = CHUNK_BYTES // self.block_bytes(shape, dtype)
        self._per_chunk = min(max(fit, 1), self._most)
        self._chunks: list[Tensor] = []
        self._places_of = np.zeros(0, np.int64)
        self._sent = np.zeros((shape.slots, self._per_row), np.int64)
        self._changes = 0
        self.tables = self._new_tables(self._least)

    @classmethod
    def block_bytes(cls, shape: CacheShape, dtype: torch.dtype) -> int:
        """Return the memory of one block of all layers."""
        numbers = shape.layers * 2 * shape.kv_heads * cls.block * shape.head_dim
        return numbers * dtype.itemsize

    # -- memory ------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """See the base."""
        return sum(chunk.nbytes for chunk in self._chunks)

    @property
    def _least(self) -> int:
        """Blocks that are there from the start: one sequence fits, however long."""
        return self._per_row + 1

    def allocate(self) -> None:
        """Take the memory of one sequence."""
        while len(self._chunks) * self._per_chunk < self._least:
            self._take_chunk()
        self.keys = [layer[0] for layer in self._chunks[0]]
        self.values = [layer[1] for layer in self._chunks[0]]
        self.table = torch.zeros(self._sent.shape, dtype=torch.int64, device=self._device)
        self.tables = self._new_tables(min(self._most, len(self._chunks) * self._per_chunk))
        # A block that is that of nobody has distance 0.
        self._sent[:] = 0
        self._changes = self.tables.changes

    def free(self) -> None:
        """See the base."""
        super().free()
        self._chunks, self._places_of, self.table = [], np.zeros(0, np.int64), None

    def _grow(self, count: int) -> int:
        try:
            while len(self._chunks) * self._per_chunk < count:
                self._take_chunk()
        except torch.OutOfMemoryError as error:
            logger.warning(
                "no memory for more than %d tokens of keys and values, so fewer responses are "
                "generated at a time: %s",
                len(self._chunks) * self._per_chunk * self.block,
                error,
            )
        return len(self._chunks) * self._per_chunk

    def _take_chunk(self) -> None:
        from rlinf.hybrid_engines.generation.hf.triton_kernels import UNIT

        shape, blocks = self.shape, self._per_chunk
        size = (shape.layers, 2, blocks, shape.kv_heads, self.block, shape.head_dim)
        # Zeros, since 0 * NaN is NaN where a kernel masks by multiplying.
        chunk = torch.zeros(size, dtype=self._dtype, device=self._device)
        self._chunks.append(chunk)
        unit = UNIT * self._dtype.itemsize
        away = chunk.data_ptr() - self._chunks[0].data_ptr()
        assert away % unit == 0, f"memory is not a multiple of {unit} bytes away"
        places = away // unit + np.arange(blocks) * (chunk.stride(2) // UNIT)
        self._places_of = np.append(self._places_of, places)

    # -- rows --------------------------------------------------------------------------------------

    def extend(self, positions: np.ndarray) -> bool:
        """See the base."""
        enough = super().extend(positions)
        if enough and self._changes != self.tables.changes:
            self._send()
        return enough

    def _send(self) -> None:
        """Tell the device which blocks rows got and lost since the last step."""
        self._changes = self.tables.changes
        table = self.tables.table
        at = np.flatnonzero(table != self._sent)
        self._sent[:] = table
        if not len(at):
            return
        news = torch.from_numpy(np.stack((at, self._known(table.reshape(-1)[at]))))
        if self._device.type == "cuda":
            # The host does not wait for the step that is under way.
            news = news.pin_memory().to(self._device, non_blocking=True)
        self.table.view(-1).index_copy_(0, news[0], news[1])

    # -- prompts -----------------------------------------------------------------------------------

    def _keep(self, layer: int, k: Tensor, v: Tensor, batch: Prefill) -> None:
        from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels

        kernels.write_blocks(k, v, batch.kept, batch.places, self.keys[layer], self.values[layer])

    def _places(self, blocks: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return how far from the first block tokens go, `[n]`, in `UNIT` numbers."""
        from rlinf.hybrid_engines.generation.hf.triton_kernels import UNIT

        return self._known(blocks) + positions % self.block * (self.shape.head_dim // UNIT)

    def _known(self, blocks: np.ndarray) -> np.ndarray:
        return self._places_of[blocks]

    def _read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels

        return kernels.read_blocks(blocks, self.keys[layer], self.values[layer])

    # -- decoding ----------------------------------------------------------------------------------

    def decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: Decode) -> Tensor:
        """See the base; `TritonModel` has this in fewer kernels."""
        from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels

        keys, values, positions = self.keys[layer], self.values[layer], step.positions
        rows = torch.arange(len(positions), device=self._device)
        inner = positions % self.block * (self.shape.head_dim // kernels.UNIT)
        places = self.table[rows, positions // self.block] + inner
        kernels.write_blocks(k, v, rows, places, keys, values)
        return kernels.attend(q.contiguous(), keys, values, positions, 1, self.table)
