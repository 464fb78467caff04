"""Questions about several items, such as `where red lamp blue chair =`: each takes two look-ups."""

from __future__ import annotations

import random
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
    answer is all towns in the order of the products, as `<answer>...</answer>`.

    With `data.team` a worked solution is that of a lead that gives each product to a worker as
    `<task>...</task>`, and of one of these workers. Without, one agent looks the first products up
    that it has room for.
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
        items = draw.sample(products(self.split == "val"), count)
        return _of_team(items, draw) if self.cfg.team else _of_one(items)

    def fingerprint(self) -> str:
        """Return what the questions follow from."""
        cfg = self.cfg
        return f"wide_questions {cfg.min_items} {cfg.max_items} {cfg.team} {len(self)} {self.seed}"


def _of_team(items: list[str], draw: random.Random) -> Record:
    towns = [town(maker(item)) for item in items]
    lead: list[Message] = [
        # The end token says that all tasks are there.
        {"role": "assistant", "content": "".join(map(as_task, items)), "ends": True},
        {"role": "tool", "content": "".join(map(_information, towns))},
        {"role": "assistant", "content": _answer(towns)},
    ]
    item = draw.choice(items)
    worker = [*_look_up(item), {"role": "assistant", "content": _answer([town(maker(item))])}]
    return _record(items, towns, lead, [(as_task(item), worker)])


def _of_one(items: list[str]) -> Record:
    towns = [town(maker(item)) for item in items]
    steps = [message for item in items[:ALONE] for message in _look_up(item)]
    said: Message = {"role": "assistant", "content": _answer(towns[:ALONE])}
    return _record(items, towns, [*steps, said], [])


def _record(
    items: list[str],
    towns: list[str],
    solution: list[Message],
    further: list[tuple[str | list[Message], str | list[Message]]],
) -> Record:
    prompt = f"where {' '.join(items)} ="
    # Word tokenizers give text back without spaces.
    answers = [" ".join(towns), "".join(towns)]
    metadata = {"items": len(items)}
    return Record(prompt, answers, f"{len(items)}_items", metadata, solution, further)


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
