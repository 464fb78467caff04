"""The prompts of a run: those that are short enough, in an order that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf.data.datasets import dataset_registry, make_dataset
from rlinf.data.datasets.base import PromptDataset, Record, Split
from rlinf.data.encoders import encoders_of_run
from rlinf.data.hashing import permutation
from rlinf.data.prompt_encoder import PromptEncoder
from rlinf.data.reasoning import Prompt
from rlinf.data.solution_encoder import SolutionEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AHEAD = 4
"""Batches that a dataset is told about before they are needed."""


@dataclass(frozen=True)
class SupervisedExample:
    """A prompt with a worked solution.

    Attributes:
        prompt_ids: `[P]` tokens of the prompt.
        response_ids: `[R]` tokens of the solution, the end token at the end.
        learnt: `[R]` whether a token is to be learnt; others are what a tool answers.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    learnt: list[bool]


class PromptSet:
    """The prompts of a dataset that are short enough, in an order per epoch.

    Epoch e is a permutation that follows from seed and e alone. A prompt has a running number,
    `epoch * len(self) + position`, from which everything else follows.

    Attributes:
        dropped: prompts that were left out, or made anew, because they are too long.
        dataset: where the records come from.

    Args:
        dataset: records.
        encoder: turns their prompts into tokens.
        solutions: turns their worked solutions into tokens.
        cfg: the `data` section.
        seed: seed of the order.
        shuffle: false keeps the order of the dataset.

    Raises:
        ValueError: A prompt is longer than `data.max_prompt_length`, and such prompts are not
            filtered; or no prompt is left.
    """

    def __init__(
        self,
        dataset: PromptDataset,
        encoder: PromptEncoder,
        solutions: SolutionEncoder,
        cfg: Any,
        *,
        seed: int = 0,
        shuffle: bool = False,
    ) -> None:
        self.dataset = dataset
        self.dropped = 0
        self._encoder, self._solutions = encoder, solutions
        self._limit, self._filter = cfg.max_prompt_length, cfg.filter_prompt_by_length
        self._seed, self._shuffle = seed, shuffle
        self._kept = np.arange(len(dataset)) if dataset.generated else self._short_enough()
        self._order = lru_cache(maxsize=2)(self._order_of)

    def __len__(self) -> int:
        """Return the prompts of an epoch."""
        return len(self._kept)

    def place(self, number: int) -> int:
        """Place in the dataset of the prompt with a running number."""
        epoch, position = divmod(number, len(self))
        return int(self._kept[self._order(epoch)[position]])

    def prompt(self, number: int) -> Prompt:
        """Return the prompt with a running number."""
        record, text, ids = self._fitting(self.place(number))
        messages = self._encoder.messages(record.prompt)
        return Prompt(number, ids, text, record.answer, record.task, record.metadata, messages)

    def supervised(self, number: int) -> SupervisedExample:
        """Return the prompt with a running number, and its solution.

        Raises:
            ValueError: It has no solution.
        """
        record, text, ids = self._fitting(self.place(number))
        if record.solution is None:
            raise ValueError(
                f"the prompt {text[:80]!r} has no worked solution; name the field that holds it "
                "with data.solution_key, or use a dataset that brings solutions, as arithmetic does"
            )
        which = number % (1 + len(record.further))
        if not which:
            return SupervisedExample(ids, *self._solutions.encode(record.solution, record.prompt))
        prompt, solution = record.further[which - 1]
        ids = self._encoder.encode(prompt)[1]
        return SupervisedExample(ids, *self._solutions.encode(solution, prompt))

    def prefetch(self, first: int, count: int) -> None:
        """Say that the prompts from a running number on are needed soon."""
        if self.dataset.generated:
            self.dataset.prefetch([self.place(number) for number in range(first, first + count)])

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be equal for running numbers to mean the same prompts."""
        return {
            "prompts": len(self),
            "seed": self._seed,
            "shuffle": self._shuffle,
            "dataset": self.dataset.fingerprint(),
        }

    def _order_of(self, epoch: int) -> np.ndarray:
        if not self._shuffle:
            return np.arange(len(self))
        return permutation(len(self), self._seed, epoch)

    def _fitting(self, place: int) -> tuple[Record, str, list[int]]:
        attempt = 0
        record = self.dataset[place]
        while True:
            text, ids = self._encoder.encode(record.prompt)
            if len(ids) <= self._limit:
                return record, text, ids
            if not self._filter:
                raise self._too_long(1, text, len(ids))
            self.dropped += 1
            attempt += 1
            record = self.dataset.redraw(place, attempt)

    def _short_enough(self) -> np.ndarray:
        kept, longest = [], (0, "")
        for place in range(len(self.dataset)):
            text, ids = self._encoder.encode(self.dataset[place].prompt)
            if len(ids) <= self._limit:
                kept.append(place)
            else:
                self.dropped += 1
                longest = max(longest, (len(ids), text))
        if self.dropped and not self._filter:
            raise self._too_long(self.dropped, longest[1], longest[0])
        if not kept:
            raise ValueError(
                f"all {self.dropped} prompts have more than data.max_prompt_length={self._limit} "
                f"tokens, up to {longest[0]}; raise it"
            )
        return np.array(kept)

    def _too_long(self, count: int, text: str, length: int) -> ValueError:
        return ValueError(
            f"{count} of {len(self.dataset)} prompts have more tokens than "
            f"data.max_prompt_length={self._limit}; the longest of them, {text[:80]!r}..., has "
            f"{length}: raise it, or leave them out with data.filter_prompt_by_length=true"
        )


class PromptStream:
    """Goes through a `PromptSet`, epoch after epoch; where it is can be saved.

    Attributes:
        prompts: the set.
        next_number: running number of the next prompt.
    """

    def __init__(self, prompts: PromptSet) -> None:
        self.prompts = prompts
        self.next_number = 0

    @property
    def epoch(self) -> int:
        """Epoch of the next prompt."""
        return self.next_number // len(self.prompts)

    def take(self, count: int) -> list[Prompt]:
        """Return the next prompts, from the next epoch when one is through."""
        numbers = self._advance(count)
        return [self.prompts.prompt(number) for number in numbers]

    def again(self, first: int, count: int) -> list[Prompt]:
        """Return prompts from a running number on, which were taken before; the stream stays."""
        self.prompts.prefetch(first, count)
        return [self.prompts.prompt(number) for number in range(first, first + count)]

    def take_supervised(self, count: int) -> list[SupervisedExample]:
        """Return the next prompts with their solutions."""
        return [self.prompts.supervised(number) for number in self._advance(count)]

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is, plain data for a checkpoint."""
        return {"next_number": self.next_number, **self.prompts.fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a stream was.

        Raises:
            ValueError: That stream had other prompts, or another order; says what differs.
        """
        now = self.prompts.fingerprint()
        changed = [
            f"{name} was {state.get(name)!r} and is {value!r}"
            for name, value in now.items()
            if state.get(name) != value
        ]
        if changed:
            raise ValueError(
                "the data is not that of the checkpoint, so the run cannot go on where it was: "
                + "; ".join(changed)
            )
        self.next_number = int(state["next_number"])

    def close(self) -> None:
        """End what works in the background."""
        self.prompts.dataset.close()

    def _advance(self, count: int) -> range:
        first = self.next_number
        self.prompts.prefetch(first, count * (1 + AHEAD))
        self.next_number += count
        return range(first, self.next_number)


def training_prompts(cfg: Any, tokenizer: PreTrainedTokenizerBase) -> PromptStream:
    """Make the stream of training prompts of a config, the whole of it."""
    return PromptStream(_prompt_set(cfg, tokenizer, "train", cfg.data.shuffle))


def validation_prompts(cfg: Any, tokenizer: PreTrainedTokenizerBase) -> PromptSet:
    """Make the validation prompts of a config, in the order of the dataset."""
    return _prompt_set(cfg, tokenizer, "val", shuffle=False)


def documents_of_run(cfg: Any) -> Callable[[], Any] | None:
    """Return what makes the documents that the dataset of a config brings; None if it has none.

    Args:
        cfg: a whole config.
    """
    documents = getattr(dataset_registry.lookup(cfg.data.type), "documents", None)
    if documents is None:
        return None
    return lambda: documents(make_dataset(cfg.data, "train", _seed_of_data(cfg)))


def _seed_of_data(cfg: Any) -> int:
    return cfg.runner.seed if cfg.data.seed is None else cfg.data.seed


def _prompt_set(
    cfg: Any, tokenizer: PreTrainedTokenizerBase, split: Split, shuffle: bool
) -> PromptSet:
    data = cfg.data
    seed = _seed_of_data(cfg)
    dataset = make_dataset(data, split, seed)
    encoder, solutions = encoders_of_run(cfg, tokenizer)
    prompts = PromptSet(dataset, encoder, solutions, data, seed=seed, shuffle=shuffle)
    if prompts.dropped:
        print(
            f"{split} data: left out {prompts.dropped} of {len(dataset)} prompts, which have more "
            f"than {data.max_prompt_length} tokens",
            flush=True,
        )
    return prompts
