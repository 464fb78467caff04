"""What the engine asks of a model: read prompts, make one step, move rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.generation.hf.weights import WeightArena


class DecoderModel(ABC):
    """A causal language model with memory for the keys and values of its rows.

    Attributes:
        module: The transformers model, whose parameters are views of `weights`.
        weights: The buffer of all weights.
        slots: Rows.
        capacity: Tokens per row.
        packed: Whether sequences are read without padding.
        fixed_span: Whether a step costs the same whatever the longest row, so that one CUDA graph
            serves all lengths.
        path: How it computes, for `stats`.
    """

    module: nn.Module
    weights: WeightArena
    slots: int
    capacity: int
    packed: bool = False
    fixed_span: bool = False
    path: str

    @abstractmethod
    def allocate(self) -> None:
        """Take the memory of keys and values."""

    @abstractmethod
    def free(self) -> None:
        """Give it back."""

    def claim(self, prefix: Sequence[int], rows: Sequence[int]) -> bool:
        """Take room for rows that begin with the same tokens; False takes none."""
        return True

    def reused(self, row: int) -> int:
        """Return how many tokens of a row need not be read."""
        return 0

    def extend(self, positions: np.ndarray) -> bool:
        """Take room for the next token of all rows, `[slots]` positions; False takes none."""
        return True

    def release(self, row: int, tokens: Sequence[int]) -> None:  # noqa: B027 - rows are always there
        """Give the room of a row back, where `tokens` were read."""

    def forget(self) -> None:  # noqa: B027 - rows are read anew
        """Let nobody use what was read before: the weights have changed."""

    @abstractmethod
    def prefill(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """Read sequences and keep the keys and values of each in some rows, which were claimed.

        Args:
            prefixes: P sequences of tokens.
            rows: For each, the rows it goes to.

        Returns:
            Logits `[P, V]` behind the last token of each.
        """

    @abstractmethod
    def decode(self, tokens: Tensor, positions: Tensor, span: int) -> Tensor:
        """Read one more token in each of the first B rows.

        Args:
            tokens: `[B]` int64.
            positions: `[B]` int64, where they are.
            span: More than every position.

        Returns:
            Logits `[B, V]`; valid until the next call.
        """

    @abstractmethod
    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of rows to other rows."""

    @abstractmethod
    def bytes_per_row(self) -> int:
        """Memory of the keys and values of one row that is full."""

    @property
    @abstractmethod
    def cache_bytes(self) -> int:
        """Memory of keys and values that is taken."""


@torch.no_grad()
def check_against_module(model: DecoderModel) -> None:
    """Compare prefill and decoding with the module's own forward on made-up tokens.

    Two sequences of different lengths share the batch, so that wrong positions and masks show.

    Raises:
        ValueError: They differ by more than rounding.
    """
    device = next(model.module.parameters()).device
    vocabulary = model.module.config.vocab_size
    room = min(model.capacity - 2, 9)
    lengths = [room, max(1, room - 4)][: model.slots]
    tokens = [
        [(7 * i + 3 * j + 1) % vocabulary for j in range(n + 1)] for i, n in enumerate(lengths)
    ]
    expected = [
        model.module(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0]
        for row in tokens
    ]
    for row, prefix in enumerate(tokens):
        model.claim(prefix[:-1], [row])
    first = model.prefill([row[:-1] for row in tokens], [[row] for row in range(len(lengths))])
    model.extend(np.array([*lengths, *[0] * (model.slots - len(lengths))]))
    new = torch.tensor([row[-1] for row in tokens], device=device)
    second = model.decode(new, torch.tensor(lengths, device=device), max(lengths) + 1)
    for row in range(len(lengths)):
        model.release(row, ())
    for row, logits in enumerate(expected):
        scale = logits.float().abs().max().clamp(min=1.0)
        # bf16 has 8 bits: two orders of adding them differ by some of the last ones.
        tolerance = (2e-4 if logits.dtype == torch.float32 else 6e-2) * scale
        for ours, reference in ((first[row], logits[-2]), (second[row], logits[-1])):
            difference = (ours.float() - reference.float()).abs().max()
            if not difference <= tolerance and torch.isfinite(logits).all():
                name = type(model.module).__name__
                raise ValueError(
                    f"{name}: logits of the generation engine differ by {difference:.2g} from "
                    f"those of transformers; rollout_backend hf cannot run this model (path "
                    f"{model.path}); use vllm or sglang"
                )
