"""Decides what failed first and writes the one failure card of a run."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlinf.scheduler.errors import RemoteTraceback, WaitTimeout, WorkerDied
from rlinf.scheduler.failure.autopsy import what_to_change
from rlinf.scheduler.failure.card import FailureCard, advice, timestamp
from rlinf.scheduler.registry.state import Death, Raised, RegistryState

# A failure shows up at the driver a little after it happened; older ones have been dealt with.
_WINDOW_SECONDS = 60.0


_WAITS = ("WaitTimeout", "ChannelError")
"""What somebody raises who waits for a process that does not answer."""
_ECHOES = ("WorkerDied", "ChannelError", "ItemLost")
"""What somebody raises who needs a process that has died; often before the registry notices."""


class Frozen(NamedTuple):
    """A worker whose process has been stopped by a signal.

    Attributes:
        name: the worker.
        where: node and process.
        pid: its process.
        activity: what it was doing.
    """

    name: str
    where: str
    pid: int
    activity: str


class FailureReporter:
    """Knows which failures the driver has seen, and explains the one that ends the run.

    Args:
        state: the registry's record of deaths and raised exceptions.
        folder: where the card is saved.
        autopsy: finds out how a worker died.
        frozen: finds the workers whose processes have been stopped by a signal.
    """

    def __init__(
        self,
        state: RegistryState,
        folder: Path,
        autopsy: Callable[[str, str], WorkerDied],
        frozen: Callable[[], list[Frozen]] = lambda: [],
    ):
        self._state = state
        self._folder = folder
        self._autopsy = autopsy
        self._frozen = frozen
        self._told: list[BaseException] = []
        self._dealt_with = 0.0
        self._lock = threading.Lock()
        self.card: FailureCard | None = None

    def report(self, error: BaseException) -> FailureCard | None:
        """Makes, saves and returns the card for the error that ends the run; None the second time.

        Args:
            error: the exception that nobody caught.
        """
        with self._lock:
            if self.card is not None or isinstance(error, (KeyboardInterrupt, SystemExit)):
                return None
            self.card = self._explain(error)
        self.card.logs = str(self._folder)
        self.card.save(self._folder)
        return self.card

    def told(self, error: BaseException) -> None:
        """The driver was told of this failure; if it goes on, it has dealt with it."""
        self._told.append(error)

    def dealt_with(self) -> None:
        """The program has recovered from all that failed until now; a later card starts here."""
        self._dealt_with = time.time()

    # -- what failed first ----------------------------------------------------------------------

    def _explain(self, error: BaseException) -> FailureCard:
        own = self._event_of(error)
        handled = [self._event_of(told) for told in self._told if told is not error]
        echo = isinstance(own, Raised) and own.type in _ECHOES
        until = own.time if own is not None and not echo else time.time()
        events: list[Death | Raised] = [*self._state.deaths, *self._state.raised]
        recent = [
            event
            for event in events
            if not any(event is other for other in handled)
            and max(until - _WINDOW_SECONDS, self._dealt_with) <= event.time <= until
        ]
        first = min([*recent, *([own] if own else [])], key=lambda e: e.time, default=None)
        if isinstance(first, Raised) and first.type in _ECHOES:
            died = [event for event in recent if isinstance(event, Death)]
            first = min(died, key=lambda e: e.time, default=first)
        followers = sorted(
            {e.name for e in events if first and e.name != first.name and e.time >= first.time}
        )
        waited = isinstance(error, WaitTimeout) and own is None and first is None
        waited_elsewhere = isinstance(first, Raised) and first.type in _WAITS
        frozen = self._frozen() if waited or waited_elsewhere else []
        if frozen:
            card = _frozen_card(frozen[0], error)
            followers = [name for name in followers if name != frozen[0].name]
        elif waited:
            card = _timeout_card(error)
        elif isinstance(first, Death):
            # Another worker that raised this only knows that the process did not answer.
            known = isinstance(error, WorkerDied) and error.worker == first.name and error.pid
            card = self._death_card(
                first, error if known else self._autopsy(first.name, first.reason)
            )
        elif isinstance(first, Raised):
            card = _raised_card(first)
        elif isinstance(error, WorkerDied):
            card = self._death_card(None, error)
        else:
            card = _driver_card(error)
        card.followers = followers
        return card

    def _event_of(self, error: BaseException) -> Death | Raised | None:
        """The registry's record of the failure that an exception speaks of."""
        if isinstance(error, WorkerDied):
            deaths = [d for d in self._state.deaths if d.name == error.worker]
            return deaths[-1] if deaths else None
        own = getattr(error, "raised", None)
        if isinstance(own, Raised):
            # It travels with the error, which may be here before the registry knows.
            return own
        cause = error.__cause__
        if isinstance(cause, RemoteTraceback):
            return next((r for r in self._state.raised if r.traceback == cause.text), None)
        return None

    def _death_card(self, death: Death | None, error: WorkerDied) -> FailureCard:
        return FailureCard(
            who=error.worker,
            where=f"node {error.node_rank} ({error.node_ip}), pid {error.pid}",
            when=timestamp(death.time if death else time.time()),
            doing=error.activity,
            what=f"the process was {error.how}" if error.signal else f"the process {error.how}",
            evidence=[*(["last log lines:"] if error.log_tail else []), *error.log_tail],
            cause=error.cause,
            change=what_to_change(error),
        )


def _raised_card(event: Raised) -> FailureCard:
    cause, change = advice(event.type, event.message)
    return FailureCard(
        who=event.name,
        where=f"worker {event.name}",
        when=timestamp(event.time),
        doing=f"running {event.method}()",
        what=f"{event.type}: {event.message}",
        evidence=event.traceback.splitlines()[-30:],
        cause=cause,
        change=change,
    )


def _timeout_card(error: WaitTimeout) -> FailureCard:
    return FailureCard(
        who=error.holders[0].partition(" ")[0] if error.holders else error.waiter,
        where="see evidence",
        when=timestamp(time.time()),
        doing=f"{error.waiter} waited for {error.what}",
        what=str(error).splitlines()[0],
        evidence=error.holders,
        cause="one of those waited for is stuck, or the deadline is too short for the work",
        change="look at the stacks beside the logs; raise the deadline in cluster.timeouts if the "
        "work is merely long",
    )


def _frozen_card(frozen: Frozen, error: BaseException) -> FailureCard:
    return FailureCard(
        who=frozen.name,
        where=frozen.where,
        when=timestamp(time.time()),
        doing=frozen.activity,
        what="the process has been stopped by a signal and does not answer",
        evidence=str(error).splitlines(),
        cause="somebody, a debugger or a batch system sent it SIGSTOP; others waited in vain",
        change="find out who stopped it; while a run still waits, "
        f"`kill -CONT {frozen.pid}` lets it go on",
    )


def _driver_card(error: BaseException) -> FailureCard:
    cause, change = advice(type(error).__qualname__, str(error))
    lines = "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    ).splitlines()
    return FailureCard(
        who="driver",
        where="the driver process",
        when=timestamp(time.time()),
        doing="running the program",
        what=f"{type(error).__qualname__}: {error}",
        evidence=lines[-30:],
        cause=cause,
        change=change,
    )
