"""How sequences lie in the input of a model of transformers: end to end, or as padded rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.utils.copies import copied_to


def layout_on(device: torch.device, sequence_layout: str, attn_implementation: str) -> str:
    """Return which layout a model of transformers uses.

    Sequences of like length go through the model together, so that rows have little padding; on a
    CPU that costs less than to move tokens to rows and back for each attention.

    Args:
        device: where the model is.
        sequence_layout: key of the model section.
        attn_implementation: likewise; attention of others knows nothing of packed rows.
    """
    if attn_implementation != "sdpa":
        return "padded"
    if sequence_layout == "auto":
        return "padded" if device.type == "cpu" else "packed"
    return sequence_layout


@dataclass(frozen=True)
class Sequences:
    """What a model reads: n sequences of N tokens, on the host.

    FSDP moves tensors among the arguments of a model to its device, and waits for that; what is in
    this it leaves where it is.

    Attributes:
        tokens: prompt and response of each sequence, end to end, int64 `[N]`.
        prompts: tokens of each prompt, at least 1, int64 `[n]`.
        responses: tokens of each response, int64 `[n]`.
    """

    tokens: Tensor
    prompts: Tensor
    responses: Tensor


@dataclass(frozen=True)
class PackedRow:
    """Where the sequences of a row lie that holds them end to end.

    Attributes:
        bounds: beginnings of the sequences and the end of the last, int32 `[n + 1]`.
        longest: tokens of the longest.
        to_rows: for each place of `[n, longest]`, its token's place in the row (behind the end of
            a sequence, its last token's), int64 `[n * longest]`; None if all are equally long.
        from_rows: for each token, its place in `[n, longest]`, int64 `[N]`; None likewise.
    """

    bounds: Tensor
    longest: int
    to_rows: Tensor | None
    from_rows: Tensor | None

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self.bounds) - 1


@dataclass(frozen=True)
class ModelInput:
    """What a language model gets, and where its answers are.

    Attributes:
        input_ids: int64 `[1, N]`, or `[n, L]` with zeros after each sequence.
        position_ids: of the same shape, from 0 in each sequence.
        places: of the tokens before each response token, in the flattened input, int64 `[R]`.
        targets: response tokens, int64 `[R]`.
        packed: where sequences lie in a packed input; None if it is padded.
    """

    input_ids: Tensor
    position_ids: Tensor
    places: Tensor
    targets: Tensor
    packed: PackedRow | None


def model_input(sequences: Sequences, layout: str, device: torch.device) -> ModelInput:
    """Lay sequences out.

    The last token of a sequence predicts nothing and is left out. Nothing stands between the
    sequences of a packed row; padding is on the right, where causal attention does not see it.

    Args:
        sequences: what to lay out.
        layout: `packed` or `padded`.
        device: where the model is.
    """
    tokens, prompts, responses = sequences.tokens, sequences.prompts, sequences.responses
    lengths = prompts + responses
    inputs = (lengths - 1).clamp(min=1)
    starts = lengths.cumsum(0) - lengths
    count, longest = len(lengths), int(inputs.max())
    row = torch.repeat_interleave(torch.arange(count), inputs)
    first = inputs.cumsum(0) - inputs
    position = torch.arange(len(row)) - first[row]
    ids = tokens[starts[row] + position]

    of = torch.repeat_interleave(torch.arange(count), responses)
    number = torch.arange(len(of)) - (responses.cumsum(0) - responses)[of]
    before = (prompts - 1)[of] + number
    targets = tokens[starts[of] + before + 1]
    if layout == "padded":
        input_ids = torch.zeros(count, longest, dtype=torch.int64)
        input_ids[row, position] = ids
        position_ids = torch.arange(longest).expand(count, longest)
        places, packed = of * longest + before, None
    else:
        input_ids, position_ids = ids.unsqueeze(0), position.unsqueeze(0)
        places = first[of] + before
        packed = _packed_row(inputs, first, row * longest + position, longest, device)
    there = [copied_to(x, device) for x in (input_ids, position_ids, places, targets)]
    return ModelInput(*there, packed)


def _packed_row(
    inputs: Tensor, first: Tensor, from_rows: Tensor, longest: int, device: torch.device
) -> PackedRow:
    bounds = torch.cat([first, inputs.sum().unsqueeze(0)]).to(torch.int32)
    if int(inputs.min()) == longest:
        return PackedRow(copied_to(bounds, device), longest, None, None)
    columns = torch.minimum(torch.arange(longest), (inputs - 1).unsqueeze(1))
    to_rows = (first.unsqueeze(1) + columns).flatten()
    there = [copied_to(x, device) for x in (to_rows, from_rows)]
    return PackedRow(copied_to(bounds, device), longest, *there)
