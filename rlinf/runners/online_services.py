"""Rollout, reward and the endpoint of a run with live traffic, which serve through all of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rlinf.data.reasoning import Verdict
from rlinf.runners.reasoning_services import ReasoningServices
from rlinf.scheduler import Channel, WaitTimeout, WorkerGroup, wait_beside
from rlinf.scheduler.deadlines import Deadline

_LOOK_SECONDS = 1.0
_TELL_SECONDS = 30.0


class OnlineServices(ReasoningServices):
    """Lets clients use the engines, and takes what they rewarded.

    Args:
        cfg: checked configuration.
        rollout: group of `ServerRolloutWorker`.
        reward: group of `RewardWorker`.
        server: group of one `OnlineRouterWorker`.
        traffic: called while the run waits for clients; raises if none will come any more.

    Attributes:
        traffic: the same.
    """

    def __init__(
        self,
        cfg: Any,
        rollout: WorkerGroup,
        reward: WorkerGroup,
        server: WorkerGroup,
        traffic: Callable[[], None],
    ) -> None:
        super().__init__(cfg, rollout, reward)
        self._server, self.traffic = server, traffic
        self._serving: list[Any] = []

    def start(self, create: Callable[[str], Channel]) -> None:
        """See the base."""
        super().start(create)
        self._live = create("live")

    @property
    def calls(self) -> list[Any]:
        """Calls that go on as long as the run does."""
        return [*super().calls, *self._serving]

    @property
    def is_open(self) -> bool:
        """Whether clients are served."""
        return bool(self._serving)

    def open(self) -> dict[str, str]:
        """Let clients in; return `url`, `key` and `model` of the endpoint."""
        lengths = wait_beside(self._rollout.connect(self._live), self.calls)
        facts = wait_beside(self._server.start(self._requests, lengths), self.calls)[0]
        self._serving = [self._server.serve(self._live, self._responses)]
        return facts

    def collect(self, step: int, count: int, version: int) -> None:
        """Order the sessions that a step trains on.

        Args:
            step: the step.
            count: how many.
            version: of the weights that learn from them.
        """
        wait_beside(self._server.collect(step, count, version), self.calls)

    def statistics(self) -> dict[str, float]:
        """Return what clients have done since the start."""
        return wait_beside(self._server.statistics(), self.calls)[0]

    def next_live_verdict(self, step: int) -> Verdict:
        """Return the next verdict on a session of a step, as long as clients may come.

        Raises:
            TimeoutError: no session got its reward for `rollout_server.patience` seconds.
        """
        patience = self._cfg.rollout_server.patience
        deadline, tell = Deadline(patience), Deadline(_TELL_SECONDS)
        while True:
            try:
                return self._verdicts.get(key=step, timeout=_LOOK_SECONDS)
            except WaitTimeout:
                self.traffic()
                for call in self.calls:
                    if call.done():
                        call.wait()
                        raise RuntimeError(f"{call} ended before the run did") from None
            if deadline.passed():
                raise TimeoutError(
                    f"step {step} waits for sessions with a reward, and none came for {patience:g} "
                    "s: are there clients, and do they POST /v1/sessions/ID/reward? "
                    "rollout_server.patience says how long to wait"
                )
            if tell.passed():
                tell = Deadline(_TELL_SECONDS)
                print(f"step {step} waits for clients", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Let no more clients in, and the workers come to their end."""
        if self._serving:
            wait_beside(self._server.stop(), super().calls)
            serving, self._serving = self._serving, []
            wait_beside(serving[0], super().calls)
        super().end()
