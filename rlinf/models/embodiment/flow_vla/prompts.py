"""Instructions as token ids, padded to one length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Style = Callable[[str, Sequence[int] | None], str]
"""From an instruction and, where the model reads it, the state in bins to the prompt."""

STATE_BINS = 256
_SHOWN = 200
"""Letters of a prompt that an error shows."""


def smolvla_prompt(task: str, state: Sequence[int] | None = None) -> str:
    """Return the prompt of SmolVLA."""
    return task if task.endswith("\n") else f"{task}\n"


def pi0_prompt(task: str, state: Sequence[int] | None = None) -> str:
    """Return the prompt of pi0."""
    return f"{_one_line(task)}\n"


def pi05_prompt(task: str, state: Sequence[int] | None = None) -> str:
    """Return the prompt of pi0.5; without a state it is that of pi0."""
    if state is None:
        return pi0_prompt(task)
    return f"Task: {_one_line(task)}, State: {' '.join(map(str, state))};\nAction: "


PI05_WORDS = ("task", ":", ",", "state", ";", "action", "-", *map(str, range(STATE_BINS)))
"""Words of the prompt of pi0.5 besides those of the instruction."""


class Prompts:
    """Makes token ids of instructions.

    Args:
        tokenizer: Of words, or of a folder.
        style: How a prompt is written.
        length: Token ids of a prompt, L; shorter ones are padded.
        begins: Prompts begin with the tokenizer's first token of all.
        left: Padding stands on the left; else on the right.

    Attributes:
        tokenizer: The tokenizer.
        pad: Id of padding.
    """

    def __init__(
        self,
        tokenizer: Any,
        style: Style,
        length: int,
        begins: bool = False,
        left: bool = False,
    ) -> None:
        self.tokenizer, self._style, self._length = tokenizer, style, length
        self._left = left
        pad = tokenizer.pad_token_id
        self.pad = tokenizer.eos_token_id if pad is None else pad
        self._first = [tokenizer.bos_token_id] if begins else []
        self._known: dict[str, list[int]] = {}
        self._alone: dict[str, list[int]] = {}

    def __call__(self, texts: Sequence[str] | None, states: Tensor | None = None) -> Tensor:
        """Return the prompts of instructions, `[B, L]` int64.

        Args:
            texts: `task_descriptions` of observations.
            states: Normalised, for prompts that hold them, `[B, S]`; None if they do not.

        Raises:
            ValueError: There are none, one is too long, or has a word that is not known.
        """
        if texts is None:
            raise ValueError(
                "the policy reads 'task_descriptions', which the observations do not have: use an "
                "env whose tasks have words"
            )
        if states is None:
            # Few instructions come again and again; those with a state hardly ever do.
            for text in texts:
                if text not in self._known:
                    self._known[text] = self._encode(self._style(text, None))
            return torch.tensor([self._known[text] for text in texts])
        rows = state_bins(states).tolist()
        pairs = zip(texts, rows, strict=True)
        return torch.tensor([self._encode(self._style(text, row)) for text, row in pairs])

    def words(self, texts: Sequence[str]) -> Tensor:
        """Return instructions without what prompts put around them, `[B, I]` int64.

        Args:
            texts: As in `__call__`, which they have passed.
        """
        for text in texts:
            if text not in self._alone:
                room = self._length - len(self._ids(self._style("", None)))
                ids = self._ids(_one_line(text))[:room]
                self._alone[text] = ids + [self.pad] * (room - len(ids))
        return torch.tensor([self._alone[text] for text in texts])

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _encode(self, prompt: str) -> list[int]:
        try:
            ids = self._ids(prompt)
        except Exception as error:
            raise ValueError(
                f"the prompt {_shown(prompt)} has a word that model.words does not list ({error})"
            ) from error
        ids = [*self._first, *ids]
        if not 0 < len(ids) <= self._length:
            raise ValueError(
                f"the prompt {_shown(prompt)} has {len(ids)} tokens; it must have 1 to "
                f"{self._length}: raise model.max_prompt_length"
            )
        padding = [self.pad] * (self._length - len(ids))
        return padding + ids if self._left else ids + padding


def state_bins(states: Tensor) -> Tensor:
    """Return which of 256 bins of [-1, 1] each number is in, int64; -1 if it is below all."""
    edges = torch.linspace(-1.0, 1.0, STATE_BINS + 1, dtype=torch.float64)[:-1]
    return torch.bucketize(states.detach().cpu().double(), edges, right=True) - 1


def _shown(prompt: str) -> str:
    """Return a prompt for an error, without the middle of one that is long."""
    half = _SHOWN // 2
    return repr(prompt if len(prompt) <= _SHOWN else f"{prompt[:half]} ... {prompt[-half:]}")


def _one_line(task: str) -> str:
    return task.strip().replace("_", " ").replace("\n", " ")
