"""Rollouts under way: those that are played while the learner learns from earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rlinf.runners.restarting_calls import Calls, RestartingCalls
from rlinf.scheduler import WorkerGroupFuncResult


@dataclass
class Rollout:
    """A rollout that was begun.

    Attributes:
        number: of the rollout; one that is played again has another.
        calls: that of the envs first, that of whoever acts last.
        ended: ranks of whoever acts that have played it to its end.
        cut: ranks that were asked to hand it over before.
    """

    number: int
    calls: Calls
    ended: set[int] = field(default_factory=set)
    cut: list[int] = field(default_factory=list)

    @property
    def behind(self) -> set[int]:
        """Ranks that still play it."""
        return set(self.calls[-1].ranks) - self.ended


class RolloutQueue:
    """Starts rollouts, several ahead if that is wanted, and hands them over in their order.

    Processes that have played all that was begun wait for those that are behind. If the learner
    waits as well, those hand over what they have of the oldest rollout, see `cut`.

    Args:
        retry: plays them again when an env process has crashed.
        start: begins to play a rollout of some number, after those that were begun before; the
            call of the envs comes first.
        receive: lets the learner receive the oldest rollout that it has not got.
        cut: asks ranks to end the rollout of some number after the chunk under way; None if
            rollouts are handed over whole.
    """

    def __init__(
        self,
        retry: RestartingCalls,
        start: Callable[[int], Calls],
        receive: Callable[[], WorkerGroupFuncResult],
        cut: Callable[[int, list[int]], object] | None = None,
    ):
        self._retry, self._start, self._receive, self._cut = retry, start, receive, cut
        self._rollouts: deque[Rollout] = deque()
        self._begun = 0
        retry.in_flight = self.calls

    def __len__(self) -> int:
        return len(self._rollouts)

    def calls(self) -> Calls:
        """Return the calls of all rollouts that the learner has not got."""
        return [call for rollout in self._rollouts for call in rollout.calls]

    def take(self, count: int) -> Rollout:
        """Let the learner have the next rollout.

        Args:
            count: rollouts that are to be under way before it is waited for, itself included.
        """

        def attempt() -> Calls:
            while len(self._rollouts) < count:
                self._begun += 1
                self._rollouts.append(Rollout(self._begun, self._start(self._begun)))
            return *self._rollouts[0].calls, self._receive()

        self._retry.run(attempt, None if self._cut is None else self._note)
        return self._rollouts.popleft()

    def forget(self) -> None:
        """Say that rollouts under way were lost: they are started again when one is taken."""
        self._rollouts.clear()

    def _note(self, call: WorkerGroupFuncResult, rank: int) -> None:
        """Take note of a rank on which a call has ended."""
        for rollout in self._rollouts:
            if rollout.calls[-1] is call:
                rollout.ended.add(rank)
        oldest, *ahead = self._rollouts
        if not ahead or oldest.cut or not oldest.behind or not oldest.ended:
            return
        if all(rollout.ended >= oldest.ended for rollout in ahead):
            oldest.cut = sorted(oldest.behind)
            self._cut(oldest.number, oldest.cut)
