"""The lean model on a CPU, whose decoding step is compiled C."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.generation.hf.kv_cache import NativeCache
from rlinf.hybrid_engines.generation.hf.lean import Layer, LeanModel
from rlinf.hybrid_engines.generation.hf.native import NativeKernels, RowPointers
from rlinf.hybrid_engines.generation.hf.weights import WeightArena


class NativeModel(LeanModel):
    """Decodes with `native.c`; fp32 on the CPU.

    Args:
        module: As for `LeanModel`.
        weights: As for `LeanModel`.
        cache: Memory for keys and values.
        kernels: For the heads of this model.
    """

    path = "native"

    def __init__(
        self, module: nn.Module, weights: WeightArena, cache: NativeCache, kernels: NativeKernels
    ):
        super().__init__(module, weights, cache)
        self.kernels = cache.kernels = kernels
        half = cache.shape.head_dim // 2
        self._half_cosine = self._cosine[:, :half].contiguous()
        self._half_sine = self._sine[:, half:].contiguous()
        self._logit_rows = torch.empty(0, self._head.shape[0])

    def allocate(self) -> None:
        """See the base."""
        super().allocate()
        # Weights and caches stay where they are until they are freed.
        layers = [self._tensors(index, layer) for index, layer in enumerate(self._layers)]
        tensors = {
            "embedding": self._embedding,
            "norm": self._norm,
            "head": self._head,
            "cosine": self._half_cosine,
            "sine": self._half_sine,
        }
        hidden, inner = self._layers[0].down.shape
        sizes = {
            "hidden": hidden,
            "inner": inner,
            "vocabulary": self._head.shape[0],
            "kv_heads": self._cache.shape.kv_heads,
            "capacity": self.capacity,
            "epsilon": self._epsilon,
        }
        self._cache.pointers = self.kernels.pointers(layers, tensors, sizes)

    def decode(self, tokens: Tensor, positions: Tensor, span: int) -> Tensor:
        """See the base."""
        rows = RowPointers(tokens=tokens.data_ptr(), positions=positions.data_ptr())
        return self.step(rows, tokens.shape[0])

    def step(self, rows: RowPointers, count: int) -> Tensor:
        """Decodes the first `count` rows and, if they have a result, draws and moves on.

        Returns:
            Logits `[count, V]`; valid until the next call.
        """
        if self._logit_rows.shape[0] < count:
            self._logit_rows = torch.empty(count, self._head.shape[0])
        logits = self._logit_rows[:count]
        self.kernels.step(self._cache.pointers, rows, logits)
        return logits

    def _tensors(self, index: int, layer: Layer) -> Mapping[str, Tensor | None]:
        q_norm, k_norm = layer.norms or (None, None)
        tensors = {name: value for name, value in vars(layer).items() if name != "norms"}
        cache = {"keys": self._cache.keys[index], "values": self._cache.values[index]}
        return {**tensors, "q_norm": q_norm, "k_norm": k_norm, **cache}
