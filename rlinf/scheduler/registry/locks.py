"""Named locks: taken all or none, first come first served, re-entrant for their owner."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class _Lock:
    owner: str | None = None
    depth: int = 0
    queue: OrderedDict[str, None] = field(default_factory=OrderedDict)


class LockTable:
    """The locks of a run, by key.

    Args:
        on_turn: called with a member that may get what it waits for.
    """

    def __init__(self, on_turn: Callable[[str], None]):
        self._on_turn = on_turn
        self._locks: dict[str, _Lock] = {}
        # By member: the locks that it holds or waits for.
        self._keys_of: dict[str, set[str]] = {}

    def acquire(self, owner: str, keys: list[str]) -> bool:
        """Take all of the locks, in the order of asking; False if the owner has to wait."""
        locks = [self._locks.setdefault(key, _Lock()) for key in keys]
        self._keys_of.setdefault(owner, set()).update(keys)
        for lock in locks:
            if lock.owner != owner:
                lock.queue.setdefault(owner)
        free = all(
            lock.owner == owner or (lock.owner is None and next(iter(lock.queue)) == owner)
            for lock in locks
        )
        if not free:
            return False
        for lock in locks:
            if lock.owner is None:
                lock.queue.popitem(last=False)
                lock.owner = owner
            lock.depth += 1
        # Another thread of the owner may wait for what it now holds.
        self._on_turn(owner)
        return True

    def release(self, owner: str, keys: list[str]) -> None:
        """Give the locks back.

        Raises:
            ValueError: the caller does not hold them.
        """
        for key in keys:
            lock = self._locks.get(key)
            if lock is None or lock.owner != owner:
                holder = lock.owner if lock else None
                raise ValueError(
                    f"{owner} does not hold the lock of {key}; {holder or 'nobody'} does"
                )
        for key in keys:
            lock = self._locks[key]
            lock.depth -= 1
            if lock.depth == 0:
                lock.owner = None
        self._tidy(owner, keys)
        # Another thread of the owner has to queue again for what it held.
        self._on_turn(owner)

    def leave_queue(self, owner: str, keys: list[str]) -> None:
        """Stop waiting for locks."""
        for key in keys:
            if key in self._locks:
                self._locks[key].queue.pop(owner, None)
        self._tidy(owner, keys)
        # Another thread of the owner may wait for the same, and has to queue again.
        self._on_turn(owner)

    def remove(self, member: str) -> None:
        """Free all that a member holds, and stop waiting for it."""
        keys = list(self._keys_of.get(member, ()))
        for key in keys:
            lock = self._locks[key]
            lock.queue.pop(member, None)
            if lock.owner == member:
                lock.owner, lock.depth = None, 0
        self._tidy(member, keys)

    def _tidy(self, member: str, keys: list[str]) -> None:
        """Forget what a member has no part in any more; tell those whose turn it may be."""
        mine = self._keys_of.get(member, set())
        for key in keys:
            lock = self._locks.get(key)
            if lock is None:
                mine.discard(key)
                continue
            if lock.owner != member and member not in lock.queue:
                mine.discard(key)
            if lock.owner is None and lock.queue:
                self._on_turn(next(iter(lock.queue)))
            elif lock.owner is None:
                del self._locks[key]
        if not mine:
            self._keys_of.pop(member, None)

    def holders(self, keys: list[str]) -> list[str]:
        """Return who holds the locks, in words."""
        held = [(key, self._locks[key].owner) for key in keys if key in self._locks]
        return [f"{key} is held by {owner}" for key, owner in held if owner]
