"""An exchange: what groups tell each other by `send_to` and `broadcast`, given up as a whole.

When one of several workers that wait for each other is lost, the others cannot finish what they
do, and what was sent is of no use any more. Exchanges are numbered, and the number is part of each
message's tag: giving one up wakes whoever waits in it and drops what was sent in it, also what is
still on its way. It can never be taken for a message of the next exchange.
"""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.collective.broadcast import Broadcaster
from rlinf.scheduler.collective.mailbox import Mailbox


class Exchange:
    """The exchange that this process takes part in.

    Args:
        mailbox: where its messages arrive.
        broadcaster: what makes its broadcasts.

    Attributes:
        number: its number, the same in all processes that take part.
    """

    def __init__(self, mailbox: Mailbox, broadcaster: Broadcaster):
        self.number = 0
        self._mailbox, self._broadcaster = mailbox, broadcaster
        self._given_up = 0

    @property
    def prefix(self) -> str:
        """What the tags of all its streams begin with."""
        return _prefix(self.number)

    def tag(self, route_key: Any, tag: str | None) -> str:
        """Tag of a stream of this exchange."""
        return f"{self.prefix}{tag} {route_key}"

    def give_up(self, number: int) -> None:
        """End all exchanges up to this one, from any thread: those who wait get CallCancelled."""
        for old in range(self._given_up, number + 1):
            self._mailbox.abandon(_prefix(old))
            self._broadcaster.abandon(_prefix(old))
        self._given_up = max(self._given_up, number + 1)

    def begin(self, number: int) -> None:
        """Give up all before this one and take part in it from now on."""
        self.give_up(number - 1)
        self.number = number


def _prefix(number: int) -> str:
    return f"share {number} "
