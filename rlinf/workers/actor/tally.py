"""Metrics of many gradient steps, which stay on the device until all of them are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Tally:
    """Numbers by name, one for each gradient step that has them."""

    def __init__(self) -> None:
        self._seen: dict[str, list[Tensor]] = {}

    def add(self, *parts: Mapping[str, Tensor]) -> None:
        """Take the numbers of a gradient step, `[]` each.

        Args:
            parts: shares of this rank, by name; they are added up, as are those of all ranks.
        """
        for name, first in parts[0].items():
            total = first.detach()
            for part in parts[1:]:
                total = total + part[name].detach()
            self._seen.setdefault(name, []).append(total)

    def means(self, all_reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Return the mean of each over gradient steps; every rank has the same names.

        Args:
            all_reduce: sums a tensor over ranks; None if there is one rank.
        """
        if not self._seen:
            return {}
        means = torch.stack([torch.stack(seen).double().mean() for seen in self._seen.values()])
        if all_reduce is not None:
            means = all_reduce(means)
        return dict(zip(self._seen, means.tolist(), strict=True))
