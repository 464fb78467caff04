"""The lean model on a CPU, which reads and draws tokens with compiled C."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.generation.hf.kv_cache import KVMemory
from rlinf.hybrid_engines.generation.hf.lean import Layer, LeanModel
from rlinf.hybrid_engines.generation.hf.native import (
    DrawingPointers,
    InputPointers,
    ModelPointers,
    NativeKernels,
    input_pointers,
)
from rlinf.hybrid_engines.generation.hf.weights import WeightArena


class NativeModel(LeanModel):
    """Runs on `native.c`; fp32 on the CPU.

    Args:
        module: As for `LeanModel`.
        weights: As for `LeanModel`.
        memory: For keys and values.
        kernels: For the heads of this model.
    """

    path = "native"
    packed = True
    fixed_span = True

    def __init__(
        self, module: nn.Module, weights: WeightArena, memory: KVMemory, kernels: NativeKernels
    ):
        super().__init__(module, weights, memory)
        self.kernels = kernels
        half = memory.shape.head_dim // 2
        self._half_cosine = self._cosine[:, :half].contiguous()
        self._half_sine = self._sine[:, half:].contiguous()
        self._pointers: ModelPointers | None = None
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
        self._pointers = self.kernels.pointers(layers, tensors, sizes)

    def free(self) -> None:
        """See the base."""
        super().free()
        self._pointers = None

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """See the base."""
        places = torch.tensor(source), torch.tensor(target)
        self.kernels.copy(self._pointers, *places, torch.full((len(source),), length))

    def prefill(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """See the base."""
        lengths = torch.tensor([len(prefix) for prefix in prefixes])
        first = torch.tensor([each[0] for each in rows])
        tokens = torch.tensor(list(itertools.chain(*prefixes)))
        ends = lengths.cumsum(0)
        positions = torch.arange(tokens.shape[0]) - (ends - lengths).repeat_interleave(lengths)
        slots = first.repeat_interleave(lengths)
        read = input_pointers(tokens, positions, slots)
        hidden = self.kernels.forward(self._pointers, read, tokens.shape[0])
        logits = hidden[ends - 1] @ self._head.t()
        others = torch.tensor([len(each) - 1 for each in rows])
        if others.any():
            targets = torch.tensor([row for each in rows for row in each[1:]])
            sources, counts = first.repeat_interleave(others), lengths.repeat_interleave(others)
            self.kernels.copy(self._pointers, sources, targets, counts)
        return logits

    def decode(self, tokens: Tensor, positions: Tensor, span: int) -> Tensor:
        """See the base."""
        return self.step(input_pointers(tokens, positions), tokens.shape[0])

    def step(
        self, tokens: InputPointers, rows: int, drawing: DrawingPointers | None = None
    ) -> Tensor:
        """Reads one more token in each of the first rows and, if told how, draws the next.

        Returns:
            Logits `[rows, V]`; valid until the next call.
        """
        if self._logit_rows.shape[0] < rows:
            self._logit_rows = torch.empty(rows, self._head.shape[0])
        logits = self._logit_rows[:rows]
        self.kernels.forward(self._pointers, tokens, rows, logits, drawing)
        return logits

    def _tensors(self, index: int, layer: Layer) -> Mapping[str, Tensor | None]:
        q_norm, k_norm = layer.norms or (None, None)
        tensors = {name: value for name, value in vars(layer).items() if name != "norms"}
        cache = {"keys": self._cache.keys[index], "values": self._cache.values[index]}
        return {**tensors, "q_norm": q_norm, "k_norm": k_norm, **cache}
