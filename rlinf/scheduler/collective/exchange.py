"""An exchange: all that groups send each other in `send_to` and `recv_from`, given up as a whole.

When one of several workers that wait for each other is lost, the others cannot finish what they
do, and what was sent is of no use any more. Exchanges are numbered, and the number is part of each
message's tag: giving one up wakes whoever waits in it and drops what was sent in it, also what is
still on its way. It can never be taken for a message of the next exchange.
"""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.collective.mailbox import Mailbox


class Exchange:
    """The exchange that this process takes part in.

    Attributes:
        number: its number, the same in all processes that take part.
    """

    def __init__(self, mailbox: Mailbox):
        self.number = 0
        self._mailbox = mailbox
        self._given_up = 0

    def tag(self, route_key: Any, tag: str | None) -> str:
        """Tag of a stream of this exchange."""
        return f"{_prefix(self.number)}{tag} {route_key}"

    def give_up(self, number: int) -> None:
        """End all exchanges up to this one, from any thread: those who wait get CallCancelled."""
        for old in range(self._given_up, number + 1):
            self._mailbox.abandon(_prefix(old))
        self._given_up = max(self._given_up, number + 1)

    def begin(self, number: int) -> None:
        """Give up all before this one and take part in it from now on."""
        self.give_up(number - 1)
        self.number = number


def _prefix(number: int) -> str:
    return f"share {number} "
