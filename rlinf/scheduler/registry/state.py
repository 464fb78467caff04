"""What the registry knows, and the rules of changing it; no sockets and no threads.

A request that cannot be answered yet becomes a waiter: it is tried again after each change and is
answered when it succeeds. Nobody polls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.events import Death, Raised

WAIT = object()
"""Answer of a request that has to wait."""


@dataclass
class _Lock:
    owner: str | None = None
    depth: int = 0
    queue: deque[str] = field(default_factory=deque)


class RegistryState:
    """Groups, addresses, ports, locks and deaths.

    Attributes:
        workers: workers by name.
        groups: names by rank, by group.
        others: members that can be sent to but are in no group, such as the driver.
        ready: workers whose constructor has returned.
        deaths: in the order of time.
        raised: exceptions of workers' methods, in the order of time.
        values: small values that processes leave for each other.
        config_reads: configuration keys that ended processes have read.
    """

    def __init__(self) -> None:
        self.workers: dict[str, WorkerInfo] = {}
        self.groups: dict[str, dict[int, str]] = {}
        self.others: dict[str, WorkerInfo] = {}
        self.ready: set[str] = set()
        self.deaths: list[Death] = []
        self.raised: list[Raised] = []
        self.values: dict[str, Any] = {}
        self.config_reads: set[str] = set()
        self._ports: dict[tuple[int, int], str] = {}
        self._locks: dict[str, _Lock] = {}
        self._lives: dict[str, int] = {}

    # -- workers ------------------------------------------------------------------------------

    def register(self, info: WorkerInfo) -> int:
        """Add a worker, or its next incarnation; return how often it lived before."""
        known = self.workers.get(info.name)
        if known is not None:
            raise ValueError(
                f"worker {info.name} is registered already (pid {known.pid} on node "
                f"{known.cluster_node_rank}); choose another group name"
            )
        info.incarnation = self._lives.get(info.name, 0)
        self._lives[info.name] = info.incarnation + 1
        self.workers[info.name] = info
        self.groups.setdefault(_group_of(info), {})[info.rank] = info.name
        return info.incarnation

    def master(self, group: str) -> Any:
        """Address and port of rank 0 of a group, as soon as it has registered."""
        name = self.groups.get(group, {}).get(0)
        if name is None:
            return WAIT
        info = self.workers[name]
        return info.node_ip, info.node_port

    def lookup(self, name: str) -> Any:
        """One worker, or the driver, as soon as it has registered; an error if it has died."""
        info = self.workers.get(name) or self.others.get(name)
        if info is not None:
            return info
        death = self.last_death(name)
        if death is not None:
            raise ConnectionError(f"{name} has died: {death.reason}")
        return WAIT

    def group(self, group: str) -> Any:
        """Return all workers of a group in rank order, as soon as each is ready."""
        names = self.groups.get(group)
        if not names:
            return WAIT
        infos = [self.workers[names[rank]] for rank in sorted(names)]
        if len(infos) < infos[0].group_world_size or any(i.name not in self.ready for i in infos):
            return WAIT
        return infos

    def group_size(self, group: str) -> Any:
        """Return the number of ranks of a group as soon as one has registered."""
        alive = [self.workers[name] for name in self.groups.get(group, {}).values()]
        dead = [d.info for d in self.deaths if d.info is not None and _group_of(d.info) == group]
        known = alive or dead[-1:]
        return known[0].group_world_size if known else WAIT

    def known_groups(self) -> list[str]:
        """Return the names of the groups with at least one worker."""
        return sorted(self.groups)

    def last_death(self, name: str) -> Death | None:
        """Return the latest death under this name, if the name is not alive again."""
        if name in self.workers:
            return None
        return next((d for d in reversed(self.deaths) if d.name == name), None)

    def remove(self, name: str) -> WorkerInfo | None:
        """Take a member out and free what it held."""
        info = self.workers.pop(name, None)
        self.ready.discard(name)
        if info is not None:
            ranks = self.groups.get(_group_of(info), {})
            ranks.pop(info.rank, None)
            if not ranks:
                self.groups.pop(_group_of(info), None)
        self._ports = {port: owner for port, owner in self._ports.items() if owner != name}
        for lock in self._locks.values():
            if name in lock.queue:
                lock.queue.remove(name)
            if lock.owner == name:
                lock.owner, lock.depth = None, 0
        return info

    def left(self, name: str) -> WorkerInfo | None:
        """Take out a member that ends on purpose, or whose group does; the next is no restart."""
        self._lives.pop(name, None)
        return self.remove(name)

    def died(self, name: str, reason: str, unreachable: bool = False) -> Death:
        """Record the end of a member that did not say goodbye."""
        death = Death(name, self.remove(name), time.time(), len(self.deaths), reason, unreachable)
        self.deaths.append(death)
        return death

    # -- ports --------------------------------------------------------------------------------

    def lock_port(self, owner: str, node_rank: int, port: int) -> bool:
        """Reserve a port of a node for its owner's life; False if it is taken, by it as well."""
        if (node_rank, port) in self._ports:
            return False
        self._ports[node_rank, port] = owner
        return True

    # -- locks --------------------------------------------------------------------------------

    def acquire(self, owner: str, keys: list[str]) -> Any:
        """Take all of the locks, in the order of asking; re-entrant for its owner."""
        locks = [self._locks.setdefault(key, _Lock()) for key in keys]
        for lock in locks:
            if lock.owner != owner and owner not in lock.queue:
                lock.queue.append(owner)
        free = all(
            lock.owner == owner or (lock.owner is None and lock.queue[0] == owner) for lock in locks
        )
        if not free:
            return WAIT
        for lock in locks:
            if lock.owner is None:
                lock.queue.popleft()
                lock.owner = owner
            lock.depth += 1
        return True

    def release(self, owner: str, keys: list[str]) -> None:
        """Give the locks back; an error if the caller does not hold them."""
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

    def leave_queue(self, owner: str, keys: list[str]) -> None:
        """Stop waiting for locks."""
        for key in keys:
            lock = self._locks.get(key)
            if lock is not None and owner in lock.queue:
                lock.queue.remove(owner)

    def holders(self, keys: list[str]) -> list[str]:
        """Return who holds the locks, in words."""
        held = [(key, self._locks[key].owner) for key in keys if key in self._locks]
        return [f"{key} is held by {owner}" for key, owner in held if owner]


@dataclass
class Waiter:
    """A request that waits for a change.

    Attributes:
        attempt: tries again; returns WAIT to go on waiting.
        answer: called once with (value, error).
        member: who asked.
        request: number of the request on its connection.
        undo: called if the request is given up.
    """

    attempt: Callable[[], Any]
    answer: Callable[[Any, Exception | None], None]
    member: str
    request: int
    undo: Callable[[], None] | None = None


def _group_of(info: WorkerInfo) -> str:
    return info.address.get_parent_address().get_name()
