"""Any causal language model of transformers, run by its own forward over rows of a static cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from rlinf.hybrid_engines.generation.hf.model import DecoderModel
from rlinf.hybrid_engines.generation.hf.weights import WeightArena


class GenericModel(DecoderModel):
    """Runs a model by its own forward: slower than `LeanModel`, for architectures that it lacks.

    Args:
        module: The model.
        weights: Its weights.
        slots: Rows.
        capacity: Tokens per row.

    Raises:
        ValueError: The model keeps something else than keys and values of all tokens.
    """

    path = "transformers"

    def __init__(self, module: nn.Module, weights: WeightArena, slots: int, capacity: int):
        self.module = module
        self.weights = weights
        self.slots = slots
        self.capacity = capacity
        self._cache: RowCache | None = None
        self._device = next(module.parameters()).device
        probe = DynamicCache(config=module.config)
        module(
            input_ids=torch.zeros(1, 1, dtype=torch.int64, device=self._device),
            past_key_values=probe,
        )
        for layer in probe.layers:
            window = getattr(layer, "sliding_window", None)
            plain = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
            if not plain or (window is not None and window < capacity):
                raise ValueError(
                    f"{type(module).__name__} has layers with {type(layer).__name__}"
                    f"{f' of {window} tokens' if window else ''}, which rollout_backend hf does "
                    f"not have for sequences of {capacity}; use vllm or sglang"
                )
        self._like = (
            [layer.keys for layer in probe.layers],
            [layer.values for layer in probe.layers],
        )

    def allocate(self) -> None:
        """See the base."""
        self._cache = RowCache(
            [RowLayer(k, v, self.slots, self.capacity) for k, v in zip(*self._like, strict=True)]
        )

    def free(self) -> None:
        """See the base."""
        self._cache = None

    def bytes_per_row(self) -> int:
        """See the base."""
        tokens = sum(t.nbytes for kind in self._like for t in kind)
        return tokens * self.capacity

    @property
    def cache_bytes(self) -> int:
        """See the base."""
        return 0 if self._cache is None else self.slots * self.bytes_per_row()

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """See the base."""
        for layer in self._cache.layers:
            for part in (layer.keys[:, :, :length], layer.values[:, :, :length]):
                part[target] = part[source]

    def prefill(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """See the base."""
        lengths, longest = [len(prefix) for prefix in prefixes], max(map(len, prefixes))
        padded = [[*prefix, *[0] * (longest - len(prefix))] for prefix in prefixes]
        fresh = DynamicCache(config=self.module.config)
        # Padding is on the right, so that with a causal mask no token sees it.
        places = torch.arange(longest, device=self._device)
        hidden = self.module(
            input_ids=torch.tensor(padded, device=self._device),
            position_ids=places[None].expand(len(prefixes), -1),
            attention_mask=self._mask(places[None].expand(len(prefixes), -1), longest),
            past_key_values=fresh,
        ).logits
        source = [index for index, targets in enumerate(rows) for _ in targets]
        target = [row for targets in rows for row in targets]
        for ours, theirs in zip(self._cache.layers, fresh.layers, strict=True):
            ours.keys[target, :, :longest] = theirs.keys[source]
            ours.values[target, :, :longest] = theirs.values[source]
        return hidden[range(len(prefixes)), [length - 1 for length in lengths]]

    def decode(self, tokens: Tensor, positions: Tensor, span: int) -> Tensor:
        """See the base."""
        self._cache.place(positions, span)
        out = self.module(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            attention_mask=self._mask(positions[:, None], span),
            past_key_values=self._cache,
        )
        return out.logits[:, -1]

    def _mask(self, positions: Tensor, span: int) -> Tensor:
        """Return what is added to scores `[B, 1, Q, span]` of queries at `positions` `[B, Q]`."""
        dtype = next(self.module.parameters()).dtype
        hidden = torch.arange(span, device=self._device) > positions[..., None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]


class RowLayer(CacheLayerMixin):
    """Keys and values `[slots, heads, capacity, D]` of a layer, written at a position per row."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, slots: int, capacity: int):
        super().__init__()
        self.keys = _rows_like(keys, slots, capacity)
        self.values = _rows_like(values, slots, capacity)
        self.is_initialized = True
        self.positions = torch.empty(0)
        self.span = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Write one token per row; return keys and values of the first B rows."""
        count = key_states.shape[0]
        for own, new in ((self.keys, key_states), (self.values, value_states)):
            own[:count].scatter_(2, self.positions[:, None, None, None].expand(new.shape), new)
        return self.keys[:count, :, : self.span], self.values[:count, :, : self.span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the tokens that are attended to, and the first of them."""
        return self.span, 0

    def get_seq_length(self) -> int:
        """Return the tokens before the new one in the longest row."""
        return max(self.span - 1, 0)

    def get_max_length(self) -> int:
        """Return the tokens of a row."""
        return self.keys.shape[2]

    get_max_cache_shape = get_max_length


class RowCache(Cache):
    """A cache of transformers in which every row has a length of its own."""

    def __init__(self, layers: list[RowLayer]):
        super().__init__(layers=layers)

    def place(self, positions: Tensor, span: int) -> None:
        """Say where the next token of each row goes."""
        for layer in self.layers:
            layer.positions, layer.span = positions, span


def _rows_like(token: Tensor, slots: int, capacity: int) -> Tensor:
    _, heads, _, width = token.shape
    return torch.zeros(slots, heads, capacity, width, dtype=token.dtype, device=token.device)
