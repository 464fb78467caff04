"""Calculations in words, such as `47 times 85 plus 6 =`: what a calculator is for."""

from __future__ import annotations

import random

from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import GeneratedDataset, Message, Record
from rlinf.data.hashing import seed_of

SIGNS = {"times": "*", "plus": "+"}
"""Words of the questions, and what a calculator is told for them."""


@register_dataset("calculations")
class CalculationDataset(GeneratedDataset):
    """Products and sums of two numbers or more, up to `data.digits` digits each.

    A hash of the calculation says whether it is held out for validation, so that none of those is
    ever trained on. The answer is to be given as `<answer>...</answer>`; a worked solution asks the
    tool `calculator` first, in the format of the run, and reads what it answers.
    """

    def redraw(self, index: int, attempt: int) -> Record:
        """See the base."""
        draw = random.Random(seed_of("calculations", self.seed, self.split, index, attempt))
        while True:
            words = self._words(draw)
            if is_held_out(words, self.cfg.held_out) == (self.split == "val"):
                return _record(words)

    def _words(self, draw: random.Random) -> list[str]:
        """Draw a calculation: numbers, and the words between them."""
        words = [self._number(draw)]
        for _ in range(draw.randint(1, self.cfg.terms - 1)):
            words += [draw.choice(list(SIGNS)), self._number(draw)]
        return words

    def _number(self, draw: random.Random) -> str:
        digits = draw.randint(1, self.cfg.digits)
        return str(draw.randrange(10 ** (digits - 1), 10**digits))

    def fingerprint(self) -> str:
        """Return what the calculations follow from."""
        cfg = self.cfg
        return f"calculations {cfg.digits} {cfg.terms} {cfg.held_out} {len(self)} {self.seed}"


def is_held_out(words: list[str], share: float) -> bool:
    """Return whether a calculation is one of those that only validation uses."""
    return seed_of("held out", words) < share * 2**32


def _record(words: list[str]) -> Record:
    expression = "".join(SIGNS.get(word, word) for word in words)
    value = str(_value(expression))
    solution: list[Message] = [
        {"role": "assistant", "calls": [("calculator", {"expression": expression})]},
        {"role": "tool", "answers": [("calculator", value)]},
        {"role": "assistant", "content": f"<answer>{value}</answer>"},
    ]
    return Record(f"{' '.join(words)} =", value, "calculations", {}, solution)


def _value(expression: str) -> int:
    total = 0
    for product in expression.split("+"):
        factors = 1
        for number in product.split("*"):
            factors *= int(number)
        total += factors
    return total
