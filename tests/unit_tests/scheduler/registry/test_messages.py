"""The registry's work per rank does not grow with the run: messages and attempts are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.net.auth import new_secret
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.registry.server import RegistryServer
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

SMALL, LARGE = 8, 40


class CountingServer(RegistryServer):
    """Counts how often it tries a request."""

    def __init__(self, secret: bytes):
        self.attempts = 0
        super().__init__(secret)

    def _try(self, waiter):
        self.attempts += 1
        super()._try(waiter)


class Crowd:
    """A registry, and one group of members that share an I/O thread."""

    def __init__(self, size: int):
        secret = new_secret()
        self.size = size
        self.server = CountingServer(secret)
        self._loop = IOLoop()
        self.driver = self._join(secret, "driver")
        self.ranks = [self._join(secret, f"g:{rank}") for rank in range(size)]

    def _join(self, secret: bytes, name: str) -> RegistryClient:
        return RegistryClient(self.server.addresses, secret, name, local=True, loop=self._loop)

    def cost(self) -> int:
        """Return messages in both directions and attempts so far."""
        with self.server._lock:
            return self.server.received + self.server.sent + self.server.attempts

    def at_once(self, function, before_rank_0) -> None:
        """Call a function with each rank, each in a thread; rank 0 when `before_rank_0()` is so."""
        failures: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                function(rank)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, self.size)]
        for thread in threads:
            thread.start()
        wait_until(before_rank_0)
        run(0)
        for thread in threads:
            thread.join(PROMPTLY)
        assert not failures and not any(thread.is_alive() for thread in threads)

    def register(self) -> None:
        """Register all ranks; rank 0, which the others wait for, comes last."""

        def start(rank: int) -> None:
            client = self.ranks[rank]
            assert client.ask("port", node_rank=0, port=1000 + rank)
            client.ask("register", info=_info(rank, self.size))
            client.ask("ready")

        others = len(self.server._waiters)
        self.at_once(start, lambda: len(self.server._waiters) == others + self.size - 1)

    def close(self) -> None:
        """End all."""
        for client in [self.driver, *self.ranks]:
            client.close()
        self.server.close()
        self._loop.stop()


def launch(crowd: Crowd) -> int:
    """All ranks register and wait for rank 0."""
    crowd.register()
    return crowd.size


def group_that_is_waited_for(crowd: Crowd) -> int:
    """The driver waits for the group while its ranks come."""
    waiting = threading.Thread(target=crowd.driver.ask, args=("group",), kwargs={"group": "g"})
    waiting.start()
    wait_until(lambda: len(crowd.server._waiters))
    crowd.register()
    waiting.join(PROMPTLY)
    return crowd.size


def lookups_that_wait(crowd: Crowd) -> int:
    """Each rank looks up the next one before any is registered."""
    lookups = [
        threading.Thread(target=client.ask, args=("lookup",), kwargs={"worker": name})
        for client, name in zip(
            crowd.ranks, [f"g:{(r + 1) % crowd.size}" for r in range(crowd.size)], strict=True
        )
    ]
    for lookup in lookups:
        lookup.start()
    wait_until(lambda: len(crowd.server._waiters) == crowd.size)
    for rank, client in enumerate(crowd.ranks):
        client.ask("register", info=_info(rank, crowd.size))
    for lookup in lookups:
        lookup.join(PROMPTLY)
    return crowd.size


def lock_that_all_want(crowd: Crowd) -> int:
    """All ranks take one lock, one after the other."""
    crowd.ranks[0].ask("acquire", keys=["device"])

    def take(rank: int) -> None:
        if rank:
            crowd.ranks[rank].ask("acquire", keys=["device"])
        crowd.ranks[rank].ask("release", keys=["device"])

    crowd.at_once(take, lambda: len(crowd.server._waiters) == crowd.size - 1)
    return crowd.size


def status_of_all(crowd: Crowd) -> int:
    """The driver asks all ranks while others wait for something else."""
    for client in crowd.ranks:
        client.on_inquiry("status", lambda _: "idle")
    waiting = [
        threading.Thread(target=client.ask, args=("take",), kwargs={"key": "later"})
        for client in crowd.ranks
    ]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(crowd.server._waiters) == crowd.size)
    names = [f"g:{rank}" for rank in range(crowd.size)]
    assert len(crowd.server.inquire("status", None, names, PROMPTLY)) == crowd.size
    crowd.driver.ask("put_once", key="later", value=1)
    for thread in waiting:
        thread.join(PROMPTLY)
    return crowd.size


def ends_of_all(crowd: Crowd) -> int:
    """All ranks, each watched by its neighbour, end while the driver waits for that."""
    crowd.register()
    for rank, client in enumerate(crowd.ranks):
        client.watch(f"g:{(rank + 1) % crowd.size}")
        client.ask("groups")
    names = [f"g:{rank}" for rank in range(crowd.size)]
    crowd.driver.ask("expect_exit", names=names)
    waiting = threading.Thread(target=crowd.driver.ask, args=("gone",), kwargs={"names": names})
    waiting.start()
    wait_until(lambda: len(crowd.server._waiters))
    for client in crowd.ranks:
        client.close()
    waiting.join(PROMPTLY)
    assert not waiting.is_alive()
    return crowd.size


OPERATIONS = [
    launch,
    group_that_is_waited_for,
    lookups_that_wait,
    lock_that_all_want,
    status_of_all,
    ends_of_all,
]


def _info(rank: int, size: int) -> WorkerInfo:
    return WorkerInfo(WorkerAddress("g", rank), rank, size, endpoints=[("unix", f"{rank}")])


@pytest.fixture
def crowds() -> Iterator[dict[int, Crowd]]:
    crowds = {size: Crowd(size) for size in (SMALL, LARGE)}
    yield crowds
    for crowd in crowds.values():
        crowd.close()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda function: function.__name__)
def test_the_cost_of_a_rank_does_not_grow_with_the_run(crowds, operation):
    per_rank = {}
    for size, crowd in crowds.items():
        before = crowd.cost()
        ranks = operation(crowd)
        per_rank[size] = (crowd.cost() - before) / ranks
    # Something fixed may come on top, which weighs more in a small run.
    assert per_rank[LARGE] <= 1.1 * per_rank[SMALL]


def test_a_death_costs_the_same_in_a_large_run(crowds):
    """Two ranks have to do with the one that dies; all others are left alone."""
    for crowd in crowds.values():
        crowd.register()
        for rank in (1, 2):
            crowd.ranks[rank].watch("g:0")
            crowd.ranks[rank].ask("groups")
        before = crowd.cost()
        crowd.ranks[0].close()
        for rank in (1, 2):
            wait_until(lambda rank=rank, crowd=crowd: "g:0" in crowd.ranks[rank].dead)
        assert crowd.cost() - before == 2
