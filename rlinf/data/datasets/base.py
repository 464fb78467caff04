"""What a dataset is: numbered records, each a question with its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Split = Literal["train", "val"]
Message = dict[str, Any]


@dataclass
class Record:
    """One question, before it is tokens.

    Attributes:
        prompt: a text, or messages with `role` and `content`.
        answer: what the reward compares with.
        task: name of the task; metrics are per task.
        metadata: whatever else the reward needs, plain data.
        solution: a worked solution for supervised training; None without one. For agents also
            messages, of which those of the role `assistant` are learnt and the others only read;
            one with `ends: True` has the end token behind it, as the last one always has. Instead
            of `content` one may have `calls` of tools, pairs of a name and its arguments, or, of
            the role `tool`, `answers`, pairs of a name and a text: these are written in the format
            that `agentloop.parser` names.
        further: prompts and worked solutions of other agents of the same episode, such as workers;
            supervised training takes one of all of them in turn.
    """

    prompt: str | list[Message]
    answer: Any
    task: str
    metadata: dict[str, Any] = field(default_factory=dict)
    solution: str | list[Message] | None = None
    further: list[tuple[str | list[Message], str | list[Message]]] = field(default_factory=list)


class PromptDataset:
    """Base class of datasets; register subclasses with `register_dataset`.

    Record i is a function of config, split and seed alone, so that a resumed run, on any machine
    and with any number of processes, sees the same.

    Attributes:
        generated: whether records are made when they are asked for, and may be made anew.

    Args:
        cfg: The `data` section.
        split: "train" or "val".
        seed: Seed of what is generated.
    """

    generated: ClassVar[bool] = False

    def __init__(self, cfg: Any, split: Split, seed: int) -> None:
        self.cfg = cfg
        self.split = split
        self.seed = seed

    def __len__(self) -> int:
        """Return the number of records."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Record:
        """Record `index`, from 0 to `len(self) - 1`."""
        raise NotImplementedError

    def redraw(self, index: int, attempt: int) -> Record:
        """Another record in the place of one that does not fit; for generated datasets.

        Args:
            index: Place of the record.
            attempt: 1 for the first other record, 2 for the next.
        """
        raise NotImplementedError

    def prefetch(self, indices: Sequence[int]) -> None:
        """Say which records are needed soon, in this order; a dataset that is slow begins now."""

    def fingerprint(self) -> str:
        """Text that differs when the records do, as far as is cheap to tell."""
        return f"{type(self).__name__} {len(self)}"

    def close(self) -> None:
        """End what works in the background."""


class GeneratedDataset(PromptDataset):
    """Base class of datasets that draw `data.size` records, and `data.val_size` for validation.

    A subclass has `redraw`, whose attempt 0 is the record itself.
    """

    generated: ClassVar[bool] = True

    def __len__(self) -> int:
        """Return the number of records."""
        return self.cfg.size if self.split == "train" else self.cfg.val_size

    def __getitem__(self, index: int) -> Record:
        """Record `index`."""
        return self.redraw(index, 0)
