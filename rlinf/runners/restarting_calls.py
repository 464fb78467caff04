"""Does again what several groups do together when a process of one of them has crashed in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rlinf.scheduler import (
    WorkerDied,
    WorkerGroup,
    WorkerGroupFuncResult,
    begin_exchange,
    call_off,
    give_up,
    new_deaths,
    wait_all,
    wait_restarted,
)
from rlinf.scheduler.worker.handle import Ended

Calls = Sequence[WorkerGroupFuncResult]


class RestartingCalls:
    """Starts calls of several groups, and starts them again when a worker of one has crashed.

    Of a rollout: a crashed env process comes back with the seeds of its rank, the others begin new
    episodes, and the rollout is played from its beginning, with the same weights. Of a weight
    update: a crashed rollout worker comes back, and the weights are sent to all of them again.

    Args:
        group: the one whose processes may crash, of `EnvWorker` or of `ServerRolloutWorker`.
        others: the groups that these workers exchange data with.
        budget: processes that may be restarted in the whole run.
        revive: gives restarted processes what they need, and lets all begin anew.
        then: what is done after a restart, in words.
        key: what raises the budget; empty if nobody is to be told.

    Attributes:
        restarts: processes that were restarted so far.
        in_flight: returns the calls that go on beside those of `run`; a crash ends them, too.
    """

    def __init__(
        self,
        group: WorkerGroup,
        others: Sequence[WorkerGroup],
        budget: int,
        revive: Callable[[], object],
        then: str = "the rollout is played again",
        key: str = "",
    ):
        self.restarts = 0
        self.in_flight: Callable[[], Calls] = tuple
        self._group = group
        self._others = list(others)
        self._budget = budget
        self._revive = revive
        self._then, self._key = then, key

    def run(self, start: Callable[[], Calls], ended: Ended | None = None) -> Calls:
        """Start calls that belong together and wait for them.

        Args:
            start: starts the calls; called again for each attempt.
            ended: is told of each rank on which one of them, or one in flight, has ended; None if
                nobody asks.

        Returns:
            The calls of the attempt that went well.

        Raises:
            WorkerDied: a worker of another group died, or one of the group beyond the budget.
            Exception: whatever a worker raised.
        """
        crashed = new_deaths(self._group)
        while True:
            self._charge(crashed)
            calls: Calls = ()
            try:
                if crashed:
                    self._recover()
                calls = start()
                # A rollout under way that fails can leave these calls waiting for good.
                beside = [call for call in self.in_flight() if call not in calls]
                wait_all(*calls, beside=beside, ended=ended)
                return calls
            except BaseException as error:
                # Nobody is left waiting, whatever comes of it.
                give_up(*calls)
                crashed = self._crashed(error, calls)

    def comes_back(self, death: WorkerDied) -> bool:
        """Return whether `run` will recover from a death that was noticed elsewhere."""
        uncounted = max(1, len(new_deaths(self._group)))
        own = death.group == self._group.worker_group_name
        return own and self.restarts + uncounted <= self._budget

    def _crashed(self, error: BaseException, calls: Calls) -> list[WorkerDied]:
        """Return the workers of the group whose end explains an error.

        Raises the error if there are none.
        """
        own = self._group.worker_group_name
        suspect = isinstance(error, WorkerDied) and error.group == own
        if not isinstance(error, Exception) or not (suspect or new_deaths(self._group)):
            raise error
        ended = call_off(*calls, *self.in_flight())
        died = {death.worker: death for death in [*ended, *new_deaths(self._group)]}
        others = [death for death in died.values() if death.group != own]
        if others or not died:
            raise others[0] if others else error
        return list(died.values())

    def _charge(self, crashed: list[WorkerDied]) -> None:
        """Count restarts, as long as there is something left of the budget."""
        for death in crashed:
            if self.restarts >= self._budget:
                if self._key:
                    _tell(
                        f"{death.worker} {death.how}, and {self._budget} restarts are over; raise "
                        f"{self._key} if it may happen more often"
                    )
                raise death
            self.restarts += 1
            _tell(
                f"{death.worker} {death.how}: restart {self.restarts} of at most {self._budget}, "
                f"{self._then}"
            )

    def _recover(self) -> None:
        """Wait for the crashed ranks and bring all to where the calls begin."""
        call_off(*self.in_flight())
        wait_restarted(self._group)
        # One that crashed once more on its way back has been started more often than noticed.
        lives = sum(info.incarnation for info in self._group.worker_info_list)
        self.restarts = max(self.restarts, lives)
        begin_exchange(self._group, *self._others)
        self._revive()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
