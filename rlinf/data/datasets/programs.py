"""Questions about a list that only a program can see, such as `sum plus largest =`."""

from __future__ import annotations

import random
from collections.abc import Callable

from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import GeneratedDataset, Message, Record
from rlinf.data.hashing import seed_of

FUNCTIONS: dict[str, tuple[str, Callable[[list[int]], int]]] = {
    "sum": ("sum", sum),
    "largest": ("max", max),
    "smallest": ("min", min),
    "count": ("len", len),
}
"""Words of the questions, what Python calls them, and what they are."""

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
"""Words between two functions, and what Python writes for them."""


@register_dataset("programs")
class ProgramDataset(GeneratedDataset):
    """One or two functions of a list of numbers, in words.

    The list is in the session of the tool `python` and not in the question. It is named `a` or `b`;
    it holds numbers, or texts of digits, which do not add up. What is so shows when a program is
    run. Worked solutions begin with the simplest program. A share of `data.repairs` repairs it by
    what the error says; the others answer with what they read, an error or not. A hash of question
    and list says whether they are held out for validation.
    """

    def redraw(self, index: int, attempt: int) -> Record:
        """See the base."""
        draw = random.Random(seed_of("programs", self.seed, self.split, index, attempt))
        while True:
            task = self._task(draw)
            if task.is_held_out(self.cfg.held_out) == (self.split == "val"):
                return task.record(repairs=draw.random() < self.cfg.repairs)

    def _task(self, draw: random.Random) -> _Task:
        words = [draw.choice(list(FUNCTIONS))]
        if draw.random() < 0.5:
            words += [draw.choice(list(SIGNS)), draw.choice(list(FUNCTIONS))]
        other_name, texts = draw.random() < 0.5, draw.random() < 0.5
        if len(words) > 1 and other_name and texts:
            # Two repairs of a long program do not fit into an episode.
            other_name = draw.random() < 0.5
            texts = not other_name
        most = 10**self.cfg.digits
        numbers = [draw.randrange(1, most) for _ in range(draw.randint(2, self.cfg.longest))]
        return _Task(words, numbers, "b" if other_name else "a", texts)

    def fingerprint(self) -> str:
        """Return what the questions follow from."""
        cfg = self.cfg
        shape = f"{cfg.digits} {cfg.longest} {cfg.held_out} {cfg.repairs}"
        return f"programs {shape} {len(self)} {self.seed}"


class _Task:
    """A question, and what is in the session.

    Args:
        words: of the question.
        numbers: in the list.
        name: of the list.
        texts: whether it holds texts.
    """

    def __init__(self, words: list[str], numbers: list[int], name: str, texts: bool) -> None:
        self.words, self.numbers, self.name, self.texts = words, numbers, name, texts

    def is_held_out(self, share: float) -> bool:
        """Return whether it is one of those that only validation uses."""
        return seed_of("held out", [*self.words, *map(str, self.numbers)]) < share * 2**32

    def record(self, repairs: bool) -> Record:
        """Return the question with its answer and a worked solution.

        Args:
            repairs: whether the solution repairs programs that fail.
        """
        held = [str(n) for n in self.numbers] if self.texts else self.numbers
        metadata = {"python_setup": f"{self.name} = {held!r}"}
        question, answer = f"{' '.join(self.words)} =", str(self._value())
        return Record(question, answer, "programs", metadata, self._solution(repairs))

    def _value(self) -> int:
        values = [FUNCTIONS[word][1](self.numbers) for word in self.words[::2]]
        if len(values) == 1:
            return values[0]
        first, second = values
        return {"plus": first + second, "minus": first - second, "times": first * second}[
            self.words[1]
        ]

    def _program(self, name: str, converted: bool) -> str:
        parts = []
        for word in self.words:
            if word in SIGNS:
                parts.append(SIGNS[word])
                continue
            function = FUNCTIONS[word][0]
            as_number = converted and function != "len"
            parts.append(f"{function}({f'map(int,{name})' if as_number else name})")
        return "".join(parts)

    def _solution(self, repairs: bool) -> list[Message]:
        """Return what a programmer writes and reads."""
        converts = self.texts and any(word in ("sum", "largest", "smallest") for word in self.words)
        runs: list[tuple[str, str]] = []
        if self.name == "b":
            runs.append((self._program("a", False), "error: NameError"))
        if converts:
            runs.append((self._program(self.name, False), self._unconverted()))
        runs.append((self._program(self.name, converts), str(self._value())))
        said: list[Message] = []
        for program, answer in runs if repairs else runs[:1]:
            said.append({"role": "assistant", "content": f"<python>{program}</python>"})
            said.append({"role": "tool", "content": f"<information>{answer}</information>"})
        said.append({"role": "assistant", "content": f"<answer>{answer}</answer>"})
        return said

    def _unconverted(self) -> str:
        """Return what Python says of a program that takes texts for numbers."""
        functions = [FUNCTIONS[word][0] for word in self.words[::2]]
        held = [str(n) for n in self.numbers]
        if "sum" in functions:
            return "error: TypeError"
        parts = [len(held) if f == "len" else (max if f == "max" else min)(held) for f in functions]
        if len(parts) == 1:
            return repr(parts[0])
        first, second = parts
        if self.words[1] == "plus" and isinstance(first, str) and isinstance(second, str):
            return repr(first + second)
        if self.words[1] == "times" and isinstance(first, str) != isinstance(second, str):
            return repr(first * second)
        return "error: TypeError"
