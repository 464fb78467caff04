"""What the registry knows, and the rules of changing it; no sockets and no threads.

A request that cannot be answered yet waits for a topic. Each change names the topics that it
concerns, and whoever waits for one of them is tried again. Nobody polls.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.events import Death, Raised
from rlinf.scheduler.registry.locks import LockTable
from rlinf.scheduler.registry.waiters import Topic, Wait


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
        locks: locks of devices.
        config_reads: configuration keys that ended processes have read.
        changes: topics that have changed since somebody looked at those who wait for them.
    """

    def __init__(self) -> None:
        self.workers: dict[str, WorkerInfo] = {}
        self.groups: dict[str, dict[int, str]] = {}
        self.others: dict[str, WorkerInfo] = {}
        self.ready: set[str] = set()
        self.deaths: list[Death] = []
        self.raised: list[Raised] = []
        self.values: dict[str, Any] = {}
        self.locks = LockTable(lambda owner: self.changes.append(("lock", owner)))
        self.config_reads: set[str] = set()
        self.changes: deque[Topic] = deque()
        self._ready_ranks: dict[str, int] = {}
        self._dead_sizes: dict[str, int] = {}
        self._deaths_of: dict[str, list[Death]] = {}
        self._ports: dict[tuple[int, int], str] = {}
        self._ports_of: dict[str, list[tuple[int, int]]] = {}
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
        group = _group_of(info)
        ranks = self.groups.setdefault(group, {})
        ranks[info.rank] = info.name
        self.changes.append(("worker", info.name))
        if len(ranks) == 1:
            self.changes.append(("group size", group))
        if info.rank == 0:
            self.changes.append(("rank 0", group))
        return info.incarnation

    def introduce(self, name: str, info: WorkerInfo) -> None:
        """Add a member that is no worker."""
        self.others[name] = info
        self.changes.append(("worker", name))

    def make_ready(self, name: str) -> None:
        """Note that the constructor of a worker has returned."""
        info = self.workers.get(name)
        if info is None or name in self.ready:
            return
        self.ready.add(name)
        group = _group_of(info)
        self._ready_ranks[group] = self._ready_ranks.get(group, 0) + 1
        if self._is_complete(group):
            self.changes.append(("group", group))

    def _is_complete(self, group: str) -> bool:
        """Return whether all ranks of a group are ready; takes no longer for large groups."""
        ranks = self.groups.get(group)
        if not ranks:
            return False
        size = self.workers[next(iter(ranks.values()))].group_world_size
        return len(ranks) >= size and self._ready_ranks.get(group, 0) == len(ranks)

    def master(self, group: str) -> Any:
        """Address and port of rank 0 of a group, as soon as it has registered."""
        name = self.groups.get(group, {}).get(0)
        if name is None:
            return Wait(("rank 0", group))
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
        return Wait(("worker", name))

    def group(self, group: str) -> Any:
        """Return all workers of a group in rank order, as soon as each is ready."""
        if not self._is_complete(group):
            return Wait(("group", group))
        return [self.workers[name] for _, name in sorted(self.groups[group].items())]

    def group_size(self, group: str) -> Any:
        """Return the number of ranks of a group as soon as one has registered."""
        ranks = self.groups.get(group)
        if ranks:
            return self.workers[next(iter(ranks.values()))].group_world_size
        return self._dead_sizes.get(group) or Wait(("group size", group))

    def known_groups(self) -> list[str]:
        """Return the names of the groups with at least one worker."""
        return sorted(self.groups)

    def deaths_of(self, name: str) -> list[Death]:
        """Return the deaths under a name, in the order of time."""
        return list(self._deaths_of.get(name, ()))

    def last_death(self, name: str) -> Death | None:
        """Return the latest death under this name, if the name is not alive again."""
        deaths = self._deaths_of.get(name)
        return deaths[-1] if deaths and name not in self.workers else None

    def remove(self, name: str) -> WorkerInfo | None:
        """Take a member out and free what it held."""
        info = self.workers.pop(name, None)
        if info is not None:
            group = _group_of(info)
            if name in self.ready:
                self.ready.discard(name)
                self._ready_ranks[group] -= 1
            ranks = self.groups[group]
            ranks.pop(info.rank, None)
            if not ranks:
                del self.groups[group]
                self._ready_ranks.pop(group, None)
        for place in self._ports_of.pop(name, ()):
            del self._ports[place]
        self.locks.remove(name)
        return info

    def left(self, name: str) -> WorkerInfo | None:
        """Take out a member that ends on purpose, or whose group does; the next is no restart."""
        self._lives.pop(name, None)
        return self.remove(name)

    def died(self, name: str, reason: str, unreachable: bool = False) -> Death:
        """Record the end of a member that did not say goodbye."""
        death = Death(name, self.remove(name), time.time(), len(self.deaths), reason, unreachable)
        self.deaths.append(death)
        self._deaths_of.setdefault(name, []).append(death)
        if death.info is not None:
            self._dead_sizes[_group_of(death.info)] = death.info.group_world_size
        self.changes.append(("worker", name))
        return death

    # -- values -------------------------------------------------------------------------------

    def take(self, key: str) -> Any:
        """Return a value as soon as somebody has left it."""
        return self.values[key] if key in self.values else Wait(("value", key))

    def put_once(self, key: str, value: Any) -> Any:
        """Leave a value, unless there is one; return the value that is there then."""
        self.changes.append(("value", key))
        return self.values.setdefault(key, value)

    def replace(self, key: str, old: Any, new: Any) -> Any:
        """Put a new value in the place of an old one; return the value that is there then."""
        if self.values.get(key) == old:
            self.values[key] = new
            self.changes.append(("value", key))
        return self.values.get(key)

    # -- ports --------------------------------------------------------------------------------

    def lock_port(self, owner: str, node_rank: int, port: int) -> bool:
        """Reserve a port of a node for its owner's life; False if it is taken, by it as well."""
        place = (node_rank, port)
        if place in self._ports:
            return False
        self._ports[place] = owner
        self._ports_of.setdefault(owner, []).append(place)
        return True

    # -- locks --------------------------------------------------------------------------------

    def acquire(self, owner: str, keys: list[str]) -> Any:
        """Take all of the locks, in the order of asking; re-entrant for its owner."""
        return self.locks.acquire(owner, keys) or Wait(("lock", owner))


def _group_of(info: WorkerInfo) -> str:
    return info.address.get_parent_address().get_name()
