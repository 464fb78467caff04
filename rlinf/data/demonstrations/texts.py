"""Texts of the frames of a dataset, each kept once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

TASK_DESCRIPTIONS = "task_descriptions"
"""The observation that says in words what is to be done; LeRobot keeps it as `task`."""


class Texts:
    """A column of texts that is indexed as a tensor is, and gives lists.

    Args:
        texts: The text of each frame.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.kinds = list(dict.fromkeys(texts))
        number = {text: i for i, text in enumerate(self.kinds)}
        self._numbers = torch.tensor([number[text] for text in texts], dtype=torch.int64)

    @classmethod
    def join(cls, parts: Iterable[Texts]) -> Texts:
        """Return the texts of several columns, one after the other."""
        return cls([text for part in parts for text in part[:]])

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, rows: Tensor | slice) -> list[str]:
        return [self.kinds[number] for number in self._numbers[rows].tolist()]
