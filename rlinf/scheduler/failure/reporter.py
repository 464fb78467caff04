"""Decides what failed first and writes the one failure card of a run."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.events import Death, Raised
from rlinf.scheduler.failure.card import FailureCard, advice, innermost, timestamp
from rlinf.scheduler.failure.post_mortem import what_to_change
from rlinf.scheduler.registry.state import RegistryState

# A failure shows up at the driver a little after it happened; older ones have been dealt with.
_WINDOW_SECONDS = 60.0
_NOTICED_SECONDS = 5.0
"""Within these, everybody has noticed a death; those who lose a connection by it may be earlier."""
DRIVER = "driver"
"""Who failed, if it was the program itself."""
TRACEBACK = "traceback.txt"
"""File with the traceback of the error that ended the run, and those of the workers behind it."""
_WAITS = ("WaitTimeout", "KeeperLost")
"""What somebody raises who waits for a process that does not answer."""


class _Told(NamedTuple):
    """A failure that the driver was told of, and when."""

    error: BaseException
    time: float


class StoppedWorker(NamedTuple):
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
        explain_death: finds out how a worker died.
        stopped: finds the workers whose processes have been stopped by a signal.

    Attributes:
        card: the card of the run; None as long as nothing has ended it.
        recovered_at: the program has recovered from all that failed before this time.
    """

    def __init__(
        self,
        state: RegistryState,
        folder: Path,
        explain_death: Callable[[str, str], WorkerDied],
        stopped: Callable[[], list[StoppedWorker]] = lambda: [],
    ):
        self._state = state
        self._folder = folder
        self._explain_death = explain_death
        self._stopped = stopped
        self._told: list[_Told] = []
        self.recovered_at = 0.0
        self._lock = threading.Lock()
        self.card: FailureCard | None = None

    def report(self, error: BaseException) -> FailureCard | None:
        """Make, save and return the card for the error that ends the run; None the second time.

        Args:
            error: the exception that nobody caught.
        """
        with self._lock:
            if self.card is not None or isinstance(error, (KeyboardInterrupt, SystemExit)):
                return None
            self.card = self._explain(error)
        self.card.logs = str(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        whole = self._folder / TRACEBACK
        whole.write_text("".join(traceback.format_exception(error)))
        self.card.traceback = str(whole)
        self.card.save(self._folder)
        return self.card

    def told(self, error: BaseException) -> None:
        """The driver was told of this failure; if it goes on, it has dealt with it."""
        self._told.append(_Told(error, time.time()))

    def dealt_with(self, moment: float) -> None:
        """The program has recovered from all that failed before; a later card starts there."""
        self.recovered_at = max(self.recovered_at, moment)

    # -- what failed first ----------------------------------------------------------------------

    def _explain(self, error: BaseException) -> FailureCard:
        chain = _chain(error)
        own = self._event_behind(chain)
        until = _moment(own) if own is not None else time.time() + _NOTICED_SECONDS
        # A peer has missed somebody of whose death the registry has not heard.
        missed = own is None and isinstance(chain[-1], WorkerDied)
        events: list[Death | Raised] = [*self._state.deaths, *self._state.raised]
        handled = self._handled(chain)
        recent = [
            event
            for event in events
            if event not in handled
            and max(until - _WINDOW_SECONDS, self.recovered_at) <= event.time
            and _moment(event) <= until
            and not (missed and _lost_connection(event))
        ]
        first = min([*recent, *([own] if own else [])], key=_moment, default=None)
        followers = sorted(
            {
                event.name
                for event in events
                if first and event.name != first.name and _moment(event) >= _moment(first)
            }
        )
        waited = isinstance(error, WaitTimeout) and own is None and first is None
        waited_elsewhere = isinstance(first, Raised) and first.type in _WAITS
        stopped = self._stopped() if waited or waited_elsewhere else []
        if stopped:
            card = _stopped_card(stopped[0], error)
            followers = [name for name in followers if name != stopped[0].name]
        elif waited:
            card = _timeout_card(error)
        elif isinstance(first, Death) and first.unreachable and first.info is not None:
            card, there = _host_card(first, self._state.deaths)
            followers = [name for name in followers if name not in there]
        elif isinstance(first, Death):
            card = self._death_card(first, self._facts(first, chain))
        elif isinstance(first, Raised):
            card = _raised_card(first)
        elif isinstance(error, WorkerDied):
            card = self._death_card(None, error)
        else:
            card = _driver_card(error)
        card.followers = followers
        return card

    def _handled(self, chain: list[BaseException]) -> list[Death | Raised]:
        """Return what failed and did not keep the program from going on.

        The program did not go on after the failure that ends it, nor, so shortly before, after a
        death: those who depend on the dead had yet to notice.
        """
        now = time.time()
        ended = next((t.time for t in self._told if any(t.error is own for own in chain)), now)
        handled = []
        for told in self._told:
            event = self._event_behind(_chain(told.error))
            notice = _NOTICED_SECONDS if isinstance(event, Death) else 0.0
            if event is not None and told.time < ended - notice:
                handled.append(event)
        return handled

    def _facts(self, death: Death, chain: list[BaseException]) -> WorkerDied:
        """Return how a worker died; a peer that only knows that it has gone does not count."""
        for error in chain:
            if isinstance(error, WorkerDied) and error.worker == death.name and error.explained:
                return error
        return self._explain_death(death.name, death.reason)

    def _event_behind(self, chain: list[BaseException]) -> Death | Raised | None:
        """Return the record of the failure that an exception speaks of."""
        return next(filter(None, map(self._event_of, chain)), None)

    def _event_of(self, error: BaseException) -> Death | Raised | None:
        if isinstance(error, WorkerDied):
            deaths = [d for d in self._state.deaths if d.name == error.worker]
            # A worker that was started anew has died more than once under its name.
            same = [d for d in deaths if d.info is not None and d.info.pid == error.pid]
            return (same or deaths or [None])[-1]
        # What travels with the error may be here before the registry knows.
        own = getattr(error, "raised", None)
        return own if isinstance(own, Raised) else None

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


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and those that it was raised from, down to a death."""
    chain = [error]
    while not isinstance(chain[-1], WorkerDied):
        cause = chain[-1].__cause__
        if cause is None or any(cause is known for known in chain):
            break
        chain.append(cause)
    return chain


def _moment(event: Death | Raised) -> float:
    """Return when a failure counts: a lost connection after the deaths that may be the reason."""
    return event.time + (_NOTICED_SECONDS if _lost_connection(event) else 0.0)


def _lost_connection(event: Death | Raised) -> bool:
    return isinstance(event, Raised) and event.may_follow_from_lost_peer


def _host_card(death: Death, deaths: list[Death]) -> tuple[FailureCard, list[str]]:
    """Return the card of a host that is lost, and the workers that were on it."""
    info = death.info
    there = sorted(
        d.name for d in deaths if d.unreachable and d.info and d.info.node_ip == info.node_ip
    )
    host = f"node {info.cluster_node_rank} ({info.node_ip})"
    card = FailureCard(
        who=host,
        where=f"{host} and the link to it",
        when=timestamp(death.time),
        doing="",
        what=death.reason,
        evidence=["workers there:", *there],
        cause="the host is down, or the link to it is cut",
        change="look whether that host is up and its network works; cluster.timeouts.reconnect "
        "says how long a link may be down, and runner.max_restarts lets a run go on from its last "
        "checkpoint on the hosts that are left",
    )
    return card, there


def _raised_card(event: Raised) -> FailureCard:
    cause, change = advice(event.type, event.message)
    return FailureCard(
        who=event.name,
        where=f"worker {event.name}",
        when=timestamp(event.time),
        doing=f"running {event.method}()",
        what=f"{event.type}: {event.message}",
        evidence=innermost(event.traceback),
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


def _stopped_card(stopped: StoppedWorker, error: BaseException) -> FailureCard:
    return FailureCard(
        who=stopped.name,
        where=stopped.where,
        when=timestamp(time.time()),
        doing=stopped.activity,
        what="the process has been stopped by a signal and does not answer",
        evidence=str(error).splitlines(),
        cause="somebody, a debugger or a batch system sent it SIGSTOP; others waited in vain",
        change="find out who stopped it; while a run still waits, "
        f"`kill -CONT {stopped.pid}` lets it go on",
    )


def _driver_card(error: BaseException) -> FailureCard:
    cause, change = advice(type(error).__qualname__, str(error))
    return FailureCard(
        who=DRIVER,
        where="the driver process",
        when=timestamp(time.time()),
        doing="running the program",
        what=f"{type(error).__qualname__}: {error}",
        evidence=innermost("".join(traceback.format_exception(error))),
        cause=cause,
        change=change,
    )
