"""Small games of text: a number to be found, and rooms to walk through."""

from __future__ import annotations

import random
import re
import zlib
from typing import TYPE_CHECKING

from rlinf.agents.envs.text_env import TextEnv, register_text_env

if TYPE_CHECKING:
    from rlinf.agents.episode import Question

_NUMBER = re.compile(r"-?\d+")


def _draw(question: Question) -> random.Random:
    """Return what draws an episode: the same for the same question."""
    seed = question.metadata.get("seed")
    return random.Random(zlib.crc32(question.text.encode()) if seed is None else seed)


@register_text_env("guess_number")
class GuessNumber(TextEnv):
    """A number is to be found; each guess is answered by `higher` or `lower`.

    The question may bring the number as `metadata["number"]`; otherwise it is drawn by
    `metadata["seed"]`, or by the text of the question.

    Args:
        lowest: of the numbers.
        highest: of the numbers.
        attempts: guesses; each beyond the first takes an equal part of the reward.
    """

    def __init__(self, lowest: int = 1, highest: int = 100, attempts: int = 7) -> None:
        if lowest > highest or attempts < 1:
            raise ValueError(
                f"agentloop.env_options of 'guess_number': lowest {lowest}, highest {highest}, "
                f"attempts {attempts}; there must be a number and an attempt"
            )
        self._lowest, self._highest, self._attempts = lowest, highest, attempts
        self._used = 0

    def reset(self, question: Question) -> str:
        """See `TextEnv.reset`."""
        number = question.metadata.get("number")
        drawn = _draw(question).randint(self._lowest, self._highest)
        self._number = drawn if number is None else int(number)
        return f"a number from {self._lowest} to {self._highest}"

    def step(self, text: str) -> tuple[str, float, bool]:
        """See `TextEnv.step`."""
        self._used += 1
        over = self._used >= self._attempts
        found = _NUMBER.findall(text)
        if not found:
            return "write a number", 0.0, over
        guess = int(found[-1])
        if guess == self._number:
            return "right", 1.0 - (self._used - 1) / self._attempts, True
        return ("higher" if guess < self._number else "lower"), 0.0, over


@register_text_env("rooms")
class Rooms(TextEnv):
    """A key and a door in a grid of rooms; the model walks `north`, `east`, `south`, `west`.

    It has to `take` the key in its room before it can `open` the door in another. It is told which
    ways lead on and what is there.

    Args:
        size: rooms in each direction.
        steps: most steps of an episode.
    """

    WAYS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}

    def __init__(self, size: int = 3, steps: int = 20) -> None:
        if size < 2 or steps < 1:
            raise ValueError(
                f"agentloop.env_options of 'rooms': size {size}, steps {steps}; there must be two "
                "rooms in each direction, and a step"
            )
        self._size, self._left = size, steps
        self._has_key = False

    def reset(self, question: Question) -> str:
        """See `TextEnv.reset`."""
        draw = _draw(question)
        places = [(x, y) for x in range(self._size) for y in range(self._size)]
        self._place, self._key, self._door = draw.sample(places, 3)
        return self._seen()

    def step(self, text: str) -> tuple[str, float, bool]:
        """See `TextEnv.step`."""
        self._left -= 1
        over = self._left <= 0
        words = text.lower().split()
        word = words[-1].strip(".,!") if words else ""
        if word in self.WAYS:
            x, y = (a + b for a, b in zip(self._place, self.WAYS[word], strict=True))
            if not (0 <= x < self._size and 0 <= y < self._size):
                return f"there is a wall. {self._seen()}", 0.0, over
            self._place = (x, y)
            return self._seen(), 0.0, over
        if word == "take" and self._place == self._key and not self._has_key:
            self._has_key = True
            return f"you have the key. {self._seen()}", 0.0, over
        if word == "open" and self._place == self._door:
            if self._has_key:
                return "the door is open", 1.0, True
            return f"you have no key. {self._seen()}", 0.0, over
        return f"that does nothing. {self._seen()}", 0.0, over

    def _seen(self) -> str:
        x, y = self._place
        ways = [
            name
            for name, (east, north) in self.WAYS.items()
            if 0 <= x + east < self._size and 0 <= y + north < self._size
        ]
        things = []
        if self._place == self._key and not self._has_key:
            things.append("a key")
        if self._place == self._door:
            things.append("a door")
        here = f" here is {' and '.join(things)}." if things else ""
        return f"ways: {', '.join(ways)}.{here}"
