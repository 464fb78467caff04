"""Requests that wait for a change, found by what they wait for and by who asked.

A change concerns few of those who wait. Each waiter names the one thing that it waits for next, its
topic, and only the waiters of a topic that has changed are tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Topic = tuple[str, Any]
"""A kind of thing, and which one: ("worker", "actor:3")."""


class Wait(NamedTuple):
    """Answer of a request that has to wait.

    Attributes:
        topic: what it waits for.
    """

    topic: Topic


@dataclass(eq=False)
class Waiter:
    """A request that may have to wait.

    Attributes:
        attempt: tries; returns a `Wait` to go on waiting.
        answer: called once with (value, error).
        member: who asked.
        request: number of the request on its connection.
        undo: called if the request is given up.
        topic: what it waits for; None if it does not.
    """

    attempt: Callable[[], Any]
    answer: Callable[[Any, Exception | None], None]
    member: str
    request: int | None
    undo: Callable[[], None] | None = None
    topic: Topic | None = None


class Waiters:
    """The requests that wait."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, dict[Waiter, None]] = {}
        self._by_member: dict[str, dict[int | None, Waiter]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_member.values()))

    def put(self, waiter: Waiter, topic: Topic) -> None:
        """Let a request wait for something, and for nothing that it waited for before."""
        if waiter.topic == topic:
            return
        self.remove(waiter)
        waiter.topic = topic
        self._by_topic.setdefault(topic, {})[waiter] = None
        self._by_member.setdefault(waiter.member, {})[waiter.request] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Forget a request; one that does not wait is left alone."""
        if waiter.topic is None:
            return
        by_topic, by_member = self._by_topic[waiter.topic], self._by_member[waiter.member]
        del by_topic[waiter], by_member[waiter.request]
        if not by_topic:
            del self._by_topic[waiter.topic]
        if not by_member:
            del self._by_member[waiter.member]
        waiter.topic = None

    def of(self, topic: Topic) -> list[Waiter]:
        """Return the requests that wait for something, in the order in which they came."""
        return list(self._by_topic.get(topic, ()))

    def of_member(self, name: str) -> list[Waiter]:
        """Return the requests of a member."""
        return list(self._by_member.get(name, {}).values())

    def find(self, name: str, request: int) -> Waiter | None:
        """Return a member's request by its number, if it waits."""
        return self._by_member.get(name, {}).get(request)
