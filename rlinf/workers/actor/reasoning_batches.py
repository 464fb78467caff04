"""Deals sequences to ranks, and cuts a rank's share into micro-batches by number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.groups import Groups
from rlinf.models.causal_lm.model import CausalLM

TOKENS = {"cpu": 4_096, "cuda": 16_384}
"""Tokens of a micro-batch where the config says nothing: a CPU is quickest with about this many."""


@dataclass(frozen=True)
class MicroBatches:
    """How many sequences go through the model at a time.

    Attributes:
        tokens: most tokens of a micro-batch; a longer sequence goes alone.
        sequences: instead of that, sequences of a micro-batch.
        padded: whether padding counts as tokens.
        agree: the greatest of the numbers that all ranks pass, so that each has as many
            micro-batches; they exchange weights in each.
    """

    tokens: int
    sequences: int | None = None
    padded: bool = False
    agree: Callable[[int], int] = int

    @classmethod
    def of(
        cls,
        cfg: Any,
        model: CausalLM,
        device: torch.device,
        agree: Callable[[int], int],
        sequences: int | None = None,
    ) -> MicroBatches:
        """Read a configuration.

        Args:
            cfg: the configuration.
            model: the model.
            device: of the learner.
            agree: see the attributes.
            sequences: sequences of a micro-batch, unless the config forms them by tokens.
        """
        budget = TOKENS.get(device.type, TOKENS["cuda"])
        if cfg.runner.enable_dynamic_batch_size:
            budget, sequences = cfg.runner.max_tokens_per_mbs, None
        return cls(budget, sequences, model.layout_on(device) == "padded", agree)

    def split(self, lengths: Tensor, rows: Tensor) -> list[Tensor]:
        """Cut some sequences into micro-batches; all ranks call it.

        The order of sequences has no effect on their loss.

        Args:
            lengths: tokens of all sequences of this rank, int64 `[n]`.
            rows: which ones, int64 `[k]`.

        Returns:
            Parts of `rows`, in number the same on each rank; some are empty where a rank has less.
        """
        # Sequences of like length come together, which saves padding.
        rows = rows[lengths[rows].argsort(descending=True, stable=True)]
        pieces = self._pieces(lengths[rows].tolist())
        wanted = self.agree(max(1, len(pieces)))
        pieces = _cut_further(pieces, wanted)
        return list(rows.split(pieces))

    def _pieces(self, lengths: list[int]) -> list[int]:
        """Return the sizes of the fewest parts in this order that keep within the budget."""
        if self.sequences is not None:
            full, rest = divmod(len(lengths), self.sequences)
            return [self.sequences] * full + [rest] * bool(rest)
        pieces: list[int] = []
        used = longest = 0
        for length in lengths:
            # With padding, lengths fall: the first of a part is its longest.
            cost = longest if self.padded else length
            if pieces and used + cost <= self.tokens:
                pieces[-1] += 1
                used += cost
            else:
                pieces.append(1)
                used = longest = length
        return pieces


def _cut_further(pieces: list[int], wanted: int) -> list[int]:
    """Halve the largest parts until there are as many as wanted, at last with empty ones."""
    pieces = list(pieces)
    while pieces and len(pieces) < wanted and max(pieces) > 1:
        place = pieces.index(max(pieces))
        half = pieces[place] // 2
        pieces[place : place + 1] = [pieces[place] - half, half]
    return pieces + [0] * (wanted - len(pieces))


def deal(
    indices: Tensor,
    lengths: Tensor,
    ranks: int,
    *,
    balance: bool = False,
    chosen: Sequence[int] | None = None,
) -> list[list[int]]:
    """Deal the groups of a step anew, so that what a rank gets does not depend on chance.

    Groups arrive in any order at any rank. Here they are put into the order of their prompts and
    dealt out, whole; each rank gets as many, up to one.

    Args:
        indices: prompt of each sequence, over all ranks, int64 `[n]`.
        lengths: tokens of each, int64 `[n]`.
        ranks: that they are dealt to.
        balance: give each rank about as many tokens, the longest groups first, instead of runs of
            neighbours.
        chosen: numbers of the prompts whose groups are dealt, the others are dropped; None is all.

    Returns:
        Prompts of each rank, in their order.

    Raises:
        ValueError: a group that is chosen has not come.
    """
    groups = Groups(indices)
    prompts = groups.labels.tolist()
    dealt = list(range(len(prompts)))
    if chosen is not None:
        missing = sorted(set(chosen) - set(prompts))
        if missing:
            raise ValueError(f"the groups of prompts {missing} were chosen but have not come")
        wanted = set(chosen)
        dealt = [group for group in dealt if prompts[group] in wanted]
    shares = [part.tolist() for part in torch.arange(len(dealt)).tensor_split(ranks)]
    if balance:
        tokens = torch.zeros_like(groups.sizes).index_add(0, groups.ids, lengths)
        shares = _balanced(tokens[dealt].tolist(), [len(share) for share in shares])
    return [[prompts[dealt[place]] for place in share] for share in shares]


def _balanced(weights: list[int], sizes: list[int]) -> list[list[int]]:
    """Give each place as many items as `sizes` says, the heaviest first to the lightest place."""
    places: list[list[int]] = [[] for _ in sizes]
    totals = [0] * len(sizes)
    for item in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        open_places = [p for p, size in enumerate(sizes) if len(places[p]) < size]
        lightest = min(open_places, key=lambda p: (totals[p], p))
        places[lightest].append(item)
        totals[lightest] += weights[item]
    return [sorted(place) for place in places]
