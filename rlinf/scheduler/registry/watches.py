"""Who is told of whose end.

Telling every end to everybody costs the square of the run's size. A member is told of the end of
those that it looks up, that look it up, and that it waits for; the driver of all deaths.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Departure(NamedTuple):
    """The latest end under a name.

    Attributes:
        moment: place in the order of all joins and ends.
        life: which of those that had the name; "" if it was no worker.
        event: "died" or "left".
        payload: what is told of it.
        told: who has been told.
    """

    moment: int
    life: str
    event: str
    payload: Any
    told: set[str]


class Watches:
    """Pairs of a member and one whose end it is told of, by name: also of that of the next ones."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[str, None]] = {}
        self._watched: dict[str, set[str]] = {}
        self._of_all: set[str] = set()

    def add(self, watcher: str, name: str) -> bool:
        """Let a member be told of an end; False if it is already."""
        watchers = self._watchers.setdefault(name, {})
        if watcher in watchers:
            return False
        watchers[watcher] = None
        self._watched.setdefault(watcher, set()).add(name)
        return True

    def add_both(self, one: str, other: str) -> None:
        """Let each of two members be told of the end of the other."""
        self.add(one, other)
        self.add(other, one)

    def add_all(self, watcher: str) -> None:
        """Let a member be told of all ends."""
        self._of_all.add(watcher)

    def has(self, watcher: str, name: str) -> bool:
        """Return whether a member is told of an end."""
        return watcher in self._of_all or watcher in self._watchers.get(name, ())

    def watchers_of(self, name: str) -> list[str]:
        """Return who is told of an end."""
        return list(self._watchers.get(name, {}) | dict.fromkeys(self._of_all))

    def forget_watcher(self, watcher: str) -> None:
        """Tell a member nothing more."""
        self._of_all.discard(watcher)
        for name in self._watched.pop(watcher, ()):
            self._drop(name, watcher)

    def forget_watched(self, name: str) -> None:
        """Forget who is told of a name whose group has been closed."""
        for watcher in self._watchers.pop(name, ()):
            names = self._watched[watcher]
            names.discard(name)
            if not names:
                del self._watched[watcher]

    def _drop(self, name: str, watcher: str) -> None:
        watchers = self._watchers[name]
        del watchers[watcher]
        if not watchers:
            del self._watchers[name]
