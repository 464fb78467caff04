"""Prompts of `reasoning-gym` tasks: generated, seeded, and none of validation in training."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, ClassVar

import numpy as np

from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import PromptDataset, Record, Split
from rlinf.data.datasets.gym_entries import EntryKey, EntrySource
from rlinf.data.hashing import mixed, seed_of

MAX_ATTEMPTS = 200
"""Entries that are tried for one place before the task is called too small."""


@register_dataset("reasoning_gym")
class ReasoningGymDataset(PromptDataset):
    """A mix of tasks, by weight.

    Record i is entry i of its task under a seed made of seed, split and task. A training question
    that is also one of validation is made anew, under another seed.
    """

    generated: ClassVar[bool] = True

    def __init__(self, cfg: Any, split: Split, seed: int) -> None:
        super().__init__(cfg, split, seed)
        self._names = [task.name for task in cfg.tasks]
        self._configs = [json.dumps(_plain(task.config), sort_keys=True) for task in cfg.tasks]
        total = sum(task.weight for task in cfg.tasks)
        self._ends = list(accumulate(task.weight / total for task in cfg.tasks))
        self._size = cfg.size if split == "train" else cfg.val_size
        if not self._size:
            raise ValueError("data.val_size is 0: there are no validation prompts")
        self._source = EntrySource(cfg.num_workers, cfg.cache_dir)
        try:
            for name, config in zip(self._names, self._configs, strict=True):
                self._source.check_task(name, config)
            self._held_out: set[str] = set()
            if split == "train" and cfg.val_size:
                self._held_out = self._validation_questions()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of records."""
        return self._size

    def __getitem__(self, index: int) -> Record:
        """Record `index`."""
        return self.redraw(index, 0)

    def redraw(self, index: int, attempt: int) -> Record:
        """Return the record in a place after `attempt` others did not fit."""
        record = next(islice(self._candidates(index), attempt, None), None)
        if record is None:
            name = self._names[self._task_of(index)]
            raise ValueError(
                f"reasoning-gym task '{name}': none of {MAX_ATTEMPTS} questions can be used; it "
                "makes too few different ones, or they are all longer than data.max_prompt_length: "
                "lower data.val_size, or change the task's config"
            )
        return record

    def prefetch(self, indices: Sequence[int]) -> None:
        """Begin to generate records."""
        self._source.prefetch(self._key(index, 0) for index in indices)

    def fingerprint(self) -> str:
        """Return everything that the records follow from."""
        tasks = list(zip(self._names, self._configs, self._ends, strict=True))
        return f"reasoning_gym {self._size} {len(self._held_out)} {self.seed} {tasks}"

    def close(self) -> None:
        """End the generating processes."""
        self._source.close()

    def _validation_questions(self) -> set[str]:
        other = ReasoningGymDataset.__new__(ReasoningGymDataset)
        other.__dict__.update(self.__dict__)
        other.split, other._size, other._held_out = "val", self.cfg.val_size, set()
        other.prefetch(range(len(other)))
        return {str(other[index].prompt) for index in range(len(other))}

    def _candidates(self, index: int) -> Iterator[Record]:
        """Yield the questions for a place that may be used there."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        for attempt in range(MAX_ATTEMPTS):
            key = self._key(index, attempt)
            entry = self._source.get(key)
            if entry is not None and entry["question"] not in self._held_out:
                metadata = {
                    "gym_task": key.task,
                    "gym_config": json.loads(key.config),
                    "gym_entry": entry,
                }
                yield Record(entry["question"], entry["answer"], key.task, metadata)

    def _key(self, index: int, attempt: int) -> EntryKey:
        task = self._task_of(index)
        name, config = self._names[task], self._configs[task]
        seed = seed_of("reasoning_gym", self.seed, self.split, name, attempt)
        return EntryKey(name, config, seed, self._size, index)

    def _task_of(self, index: int) -> int:
        start = np.uint64(seed_of("mix", self.seed, self.split)) << np.uint64(32)
        uniform = float(mixed(start + np.array([index], dtype=np.uint64))[0]) / 2**64
        return min(bisect_right(self._ends, uniform), len(self._names) - 1)


def _plain(config: Any) -> dict[str, Any]:
    if isinstance(config, dict):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config)
