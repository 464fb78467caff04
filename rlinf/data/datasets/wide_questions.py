"""Questions about several items, such as `where red lamp blue chair =`: each takes two look-ups."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from rlinf.agents.tools.lookup import maker, products, town
from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import GeneratedDataset, Message, Record, Split
from rlinf.data.hashing import seed_of

ALONE = 3
"""Products that a context of 64 tokens has room for."""


@register_dataset("wide_questions")
class WideQuestionDataset(GeneratedDataset):
    """Where are the companies that make some products?

    A product says who makes it, and a company where it is, when the tool `lookup` is asked by its
    tag. Validation asks for products, and so for companies, that training never asks for. The
    answer is all towns in the order of the products, as `<answer>...</answer>`. Products of a
    question have no word in common, and are made in different towns.

    With `data.team` a worked solution is that of a lead that gives each product to a worker as
    `<task>...</task>`, and of one of these workers. A share of `data.careless` of the leads go no
    further than one agent alone: they give the first products away that one has room for, and so
    give a wrong answer to a longer question. Without `data.team`, one agent looks these up itself.
    """

    def __init__(self, cfg: Any, split: Split, seed: int) -> None:
        super().__init__(cfg, split, seed)
        if cfg.min_items > cfg.max_items:
            raise ValueError(
                f"data.min_items is {cfg.min_items}, more than data.max_items: {cfg.max_items}; "
                "lower it"
            )

    def redraw(self, index: int, attempt: int) -> Record:
        """See the base."""
        draw = random.Random(seed_of("wide questions", self.seed, self.split, index, attempt))
        count = draw.randint(self.cfg.min_items, self.cfg.max_items)
        known = products(self.split == "val")
        items = draw.sample(known, count)
        while not _unlike(items):
            items = draw.sample(known, count)
        if not self.cfg.team:
            return _of_one(items)
        worked = items[:ALONE] if draw.random() < self.cfg.careless else items
        return _of_team(items, worked, draw.choice(worked))

    def fingerprint(self) -> str:
        """Return what the questions follow from."""
        cfg = self.cfg
        shape = f"{cfg.min_items} {cfg.max_items} {cfg.team} {cfg.careless}"
        return f"wide_questions {shape} {len(self)} {self.seed}"


def _unlike(items: list[str]) -> bool:
    """Return whether no word and no town occurs twice."""
    words = [word for item in items for word in _words(item)]
    return len(set(words)) == len(words)


@cache
def _words(item: str) -> tuple[str, ...]:
    """Return the words of an item, and the town that it is made in."""
    return (*item.split(), town(maker(item)))


def _of_team(items: list[str], worked: list[str], of_worker: str) -> Record:
    """Return a question with what a lead and one worker do.

    Args:
        items: that the question is about.
        worked: that the lead gives away.
        of_worker: that the worker finds out about.
    """
    found = _towns(worked)
    lead: list[Message] = [
        # The end token says that all tasks are there.
        {"role": "assistant", "content": "".join(map(as_task, worked)), "ends": True},
        {"role": "tool", "content": "".join(map(_information, found))},
        {"role": "assistant", "content": _answer(found)},
    ]
    worker = [
        *_look_up(of_worker),
        {"role": "assistant", "content": _answer(_towns([of_worker]))},
    ]
    return _record(items, lead, [(as_task(of_worker), worker)])


def _of_one(items: list[str]) -> Record:
    steps = [message for item in items[:ALONE] for message in _look_up(item)]
    said: Message = {"role": "assistant", "content": _answer(_towns(items[:ALONE]))}
    return _record(items, [*steps, said], [])


def _record(
    items: list[str],
    solution: list[Message],
    further: list[tuple[str | list[Message], str | list[Message]]],
) -> Record:
    prompt = f"where {' '.join(items)} ="
    towns = _towns(items)
    # Word tokenizers give text back without spaces.
    answers = [" ".join(towns), "".join(towns)]
    metadata = {"items": len(items)}
    return Record(prompt, answers, f"{len(items)}_items", metadata, solution, further)


def _towns(items: list[str]) -> list[str]:
    return [town(maker(item)) for item in items]


def as_task(item: str) -> str:
    """Return the task of a worker that finds out about an item."""
    return f"<task>{item}</task>"


def _look_up(item: str) -> list[Message]:
    messages: list[Message] = []
    for name, found in ((item, maker(item)), (maker(item), town(maker(item)))):
        messages += [
            {"role": "assistant", "content": f"<lookup>{name}</lookup>"},
            {"role": "tool", "content": _information(found)},
        ]
    return messages


def _information(text: str) -> str:
    return f"<information>{text}</information>"


def _answer(towns: list[str]) -> str:
    return f"<answer>{' '.join(towns)}</answer>"
