"""Rollouts under way: those that are played while the learner learns from earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rlinf.runners.rollout_retry import Calls, RolloutRetry
from rlinf.scheduler import WorkerGroupFuncResult


class RolloutQueue:
    """Starts rollouts, several ahead if that is wanted, and hands them over in their order.

    Args:
        retry: plays them again when an env process has crashed.
        start: begins to play a rollout, after those that were begun before; the call of the envs
            comes first.
        receive: lets the learner receive the oldest rollout that it has not got.
    """

    def __init__(
        self,
        retry: RolloutRetry,
        start: Callable[[], Calls],
        receive: Callable[[], WorkerGroupFuncResult],
    ):
        self._retry, self._start, self._receive = retry, start, receive
        self._calls: deque[Calls] = deque()
        retry.in_flight = self.calls

    def __len__(self) -> int:
        return len(self._calls)

    def calls(self) -> Calls:
        """Return the calls of all rollouts that the learner has not got."""
        return [call for calls in self._calls for call in calls]

    def take(self, count: int) -> Calls:
        """Let the learner have the next rollout.

        Args:
            count: rollouts that are to be under way before it is waited for, itself included.

        Returns:
            The calls that played it.
        """

        def attempt() -> Calls:
            while len(self._calls) < count:
                self._calls.append(self._start())
            return *self._calls[0], self._receive()

        *played, _ = self._retry.play(attempt)
        self._calls.popleft()
        return played

    def forget(self) -> None:
        """Say that rollouts under way were lost: they are started again when one is taken."""
        self._calls.clear()
