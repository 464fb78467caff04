"""What any process of a run can find out about workers that fail or do not answer."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.events import Death, Raised
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec

_EXPLAINED_SECONDS = 10.0
"""How long before a lost connection a death may lie that is the reason."""


class Supervisor:
    """Deadlines, deaths and messages to workers, by way of the registry.

    The driver has one that also looks at processes and keeps account of failures; see
    `rlinf.scheduler.cluster.driver_supervisor`.

    Args:
        name: name of this process.
        run: what all processes share.
        registry: the connection to the registry.

    Attributes:
        recovered_at: the program has recovered from all that failed before this time.
        exchange: number of the exchange that groups take part in; see `begin_exchange`.
    """

    recovered_at = 0.0

    def __init__(self, name: str, run: RunSpec, registry: RegistryClient):
        self.name = name
        self.exchange = 0
        self._run = run
        self._registry = registry

    def timeout(self, name: str) -> float | None:
        """Return the deadline of a kind of wait, in seconds."""
        return self._run.timeout(name)

    def tell(self, event: str, payload: Any, names: list[str]) -> None:
        """Send an event to workers, which take it in also while they are busy."""
        self._registry.notify("tell", event=event, payload=payload, names=names)

    def cancel(self, call: str, name: str) -> None:
        """Ask a worker to stop a call."""
        self.tell("cancel", call, [name])

    # -- deaths -------------------------------------------------------------------------------

    def deaths(self) -> list[Death]:
        """Return all deaths of the run so far, in the order of time."""
        return self._registry.ask("deaths")

    def death_order(self) -> dict[str, int]:
        """Return the position of each death of the run in time."""
        return {death.name: death.order for death in self.deaths()}

    def deaths_behind(self, report: Raised) -> list[WorkerDied]:
        """Return the deaths that may be the reason of an exception, in the order of time."""
        since = max(report.time - _EXPLAINED_SECONDS, self.recovered_at)
        deaths = [d for d in self.deaths() if d.info is not None and d.time >= since]
        return [self.explain_death(death.name, death.reason) for death in deaths]

    def explain_death(self, name: str, message: str = "") -> WorkerDied:
        """Find out how a worker died.

        Args:
            name: the worker.
            message: what is said of its death.
        """
        return WorkerDied(name, cause=message)

    def with_facts(self, died: WorkerDied) -> WorkerDied:
        """Return a death as a peer saw it, with how it came about if the peer does not know."""
        return died

    # -- failures -----------------------------------------------------------------------------

    def describe_timeout(self, what: str, names: list[str], seconds: float | None) -> WaitTimeout:
        """Say who did not answer, and as far as possible what each was doing."""
        return WaitTimeout(what, waiter=self.name, seconds=seconds, holders=names)

    def note_told(self, failure: BaseException) -> None:
        """Note that a failure is being raised to the caller, who may catch it and go on."""

    def note_recovery(self, moment: float) -> None:
        """Note that the program has recovered from all that failed before a moment."""
