"""Lines of code to complete: a comment says in words what a function is to return."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import GeneratedDataset, Record
from rlinf.data.hashing import seed_of

NAMES = ("a", "b", "c")
NUMBERS = ("2", "3", "5")
HEAD = "def f(a,b,c):"
_TESTS = 3


@dataclass(frozen=True)
class Operation:
    """What a word stands for.

    Attributes:
        inputs: How many values it takes.
        code: Writes it, given the code of its inputs.
        value: Computes it.
        mistake: Word of the operation that it is confused with.
    """

    inputs: int
    code: str
    value: Callable[..., int]
    mistake: str


OPERATIONS = {
    "sum": Operation(2, "({}+{})", lambda x, y: x + y, "difference"),
    "difference": Operation(2, "({}-{})", lambda x, y: x - y, "sum"),
    "product": Operation(2, "({}*{})", lambda x, y: x * y, "sum"),
    "larger": Operation(2, "max({},{})", max, "smaller"),
    "smaller": Operation(2, "min({},{})", min, "larger"),
    "square": Operation(1, "pow({},2)", lambda x: x * x, "size"),
    "size": Operation(1, "abs({})", abs, "square"),
}
WORDS = "# of and def return f(a,b,c): ( ) , + - * max( min( pow( abs("
"""Further words of prompts and solutions."""

Tree = str | tuple[str, tuple[Any, ...]]
"""A name or a number, or an operation and what it is applied to."""


@register_dataset("one_liners")
class OneLinerDataset(GeneratedDataset):
    """Comments such as `# larger of a and square of b`, and the head of a function below them.

    The answer completes the line with an expression, and tests call the function. A hash of the
    comment says whether it is held out for validation. With `data.mistakes`, worked solutions have
    operations that are not the ones of the comment, as code has that nobody has tested.
    """

    def redraw(self, index: int, attempt: int) -> Record:
        """See the base."""
        draw = random.Random(seed_of("one_liners", self.seed, self.split, index, attempt))
        while True:
            tree = draw_tree(draw, self.cfg.depth)
            held_out = seed_of("held out", words_of(tree)) < self.cfg.held_out * 2**32
            if held_out == (self.split == "val"):
                return _record(tree, draw, self.cfg.mistakes)

    def fingerprint(self) -> str:
        """Return what the lines follow from."""
        cfg = self.cfg
        numbers = f"{cfg.depth} {cfg.mistakes} {cfg.held_out} {len(self)} {self.seed}"
        return f"one_liners {numbers}"


def draw_tree(draw: random.Random, depth: int) -> Tree:
    """Draw an operation whose inputs are operations or values."""
    name = draw.choice(list(OPERATIONS))
    inputs: list[Tree] = []
    for _ in range(OPERATIONS[name].inputs):
        if depth > 1 and draw.random() < 0.5:
            inputs.append(draw_tree(draw, depth - 1))
        else:
            inputs.append(draw.choice(NAMES if draw.random() < 0.75 else NUMBERS))
    return name, tuple(inputs)


def words_of(tree: Tree) -> str:
    """Return an expression in words."""
    if isinstance(tree, str):
        return tree
    return f"{tree[0]} of {' and '.join(map(words_of, tree[1]))}"


def code_of(tree: Tree, mistaken: Callable[[], bool] = lambda: False) -> str:
    """Return an expression as code; asks for each operation whether it is to be a wrong one."""
    if isinstance(tree, str):
        return tree
    name, inputs = tree
    operation = OPERATIONS[name]
    if mistaken():
        operation = OPERATIONS[operation.mistake]
    return operation.code.format(*(code_of(each, mistaken) for each in inputs))


def value_of(tree: Tree, values: Sequence[int]) -> int:
    """Return what an expression is worth."""
    if isinstance(tree, str):
        return values[NAMES.index(tree)] if tree in NAMES else int(tree)
    return OPERATIONS[tree[0]].value(*(value_of(each, values) for each in tree[1]))


def _record(tree: Tree, draw: random.Random, mistakes: float) -> Record:
    inputs = [draw.sample([*range(-9, -1), *range(2, 10)], len(NAMES)) for _ in range(_TESTS)]
    outputs = [value_of(tree, values) for values in inputs]
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": "f"}
    solution = code_of(tree, lambda: draw.random() < mistakes)
    prompt = f"# {words_of(tree)} {HEAD} return"
    metadata = {"prefix": f"{HEAD}\n    return "}
    return Record(prompt, tests, "one_liners", metadata, solution)
