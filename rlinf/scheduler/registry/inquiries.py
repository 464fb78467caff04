"""Questions of the registry to members, and the answers as they come."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from rlinf.scheduler.net.interrupts import interruptible


class Inquiry:
    """A question, and the answers so far.

    Attributes:
        number: names it in messages.
        answers: by member.
    """

    def __init__(self, number: int, members: Iterable[str]):
        self.number = number
        self.answers: dict[str, Any] = {}
        self.open = set(members)
        self._done = threading.Event()
        if not self.open:
            self._done.set()

    def close(self, name: str) -> bool:
        """Expect nothing more of a member; True if that was the last one."""
        self.open.discard(name)
        if self.open or self._done.is_set():
            return False
        self._done.set()
        return True

    @property
    def complete(self) -> bool:
        """Whether all have answered, or will not."""
        return self._done.is_set()

    def wait(self, timeout: float) -> None:
        """Wait until it is complete, or until the deadline."""
        interruptible(self._done.wait, timeout)


class Inquiries:
    """The questions that are open.

    Args:
        on_complete: called with the number of a question when its last answer has come.
    """

    def __init__(self, on_complete: Callable[[int], None]):
        self._on_complete = on_complete
        self._numbers = itertools.count()
        self._open: dict[int, Inquiry] = {}
        # By member: the questions that it has not answered.
        self._asked: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, members: Iterable[str]) -> Inquiry:
        """Open a question to some members."""
        number = next(self._numbers)
        inquiry = self._open[number] = Inquiry(number, members)
        for name in inquiry.open:
            self._asked.setdefault(name, set()).add(number)
        return inquiry

    def take(self, number: int, name: str, answer: Any) -> None:
        """Keep an answer; one that comes too late is dropped."""
        if number in self._open:
            self._open[number].answers[name] = answer
            self.decline(number, name)

    def decline(self, number: int, name: str) -> None:
        """Note that a member does not answer a question."""
        if number in self._open:
            self._forget(number, name)
            if self._open[number].close(name):
                self._on_complete(number)

    def member_gone(self, name: str) -> None:
        """Note that a member answers nothing any more."""
        for number in list(self._asked.get(name, ())):
            self.decline(number, name)

    def end(self, number: int) -> None:
        """Close a question; answers that are missing are dropped when they come."""
        inquiry = self._open.pop(number, None)
        for name in list(inquiry.open) if inquiry is not None else ():
            self._forget(number, name)

    def _forget(self, number: int, name: str) -> None:
        numbers = self._asked.get(name, set())
        numbers.discard(number)
        if not numbers:
            self._asked.pop(name, None)
