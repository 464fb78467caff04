"""Rollout, reward and the endpoint of a run with live traffic, which serve through all of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.data.prompts import PromptSet
from rlinf.data.reasoning import Verdict
from rlinf.runners.reasoning_services import ReasoningServices
from rlinf.scheduler import (
    Channel,
    WaitTimeout,
    WorkerDied,
    WorkerGroup,
    new_deaths,
    wait_all,
    wait_beside,
)
from rlinf.scheduler.deadlines import Deadline

_LOOK_SECONDS = 1.0
_TELL_SECONDS = 30.0


class OnlineServices(ReasoningServices):
    """Lets clients use the engines, and takes what they rewarded.

    Rollout workers may die: what waits here calls `recover`, and goes on.

    Args:
        cfg: checked configuration.
        rollout: group of `ServerRolloutWorker`.
        reward: group of `RewardWorker`.
        server: group of one `OnlineRouterWorker`.
        traffic: called while the run waits for clients; raises if none will come any more.
        recover: brings rollout workers that died back, with `restart` and the actor's weights.

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
        recover: Callable[[], object],
    ) -> None:
        super().__init__(cfg, rollout, reward)
        self._server, self.traffic, self._recover = server, traffic, recover
        self._serving: list[Any] = []
        self._lives: list[str] = []
        self._restarted: set[int] = set()

    _survives_engines = True

    def start(self, create: Callable[..., Channel]) -> None:
        """See the base."""
        super().start(create)
        self._live = create("live")
        self._lives = [info.life for info in self._rollout.worker_info_list]

    @property
    def calls(self) -> list[Any]:
        """Calls that go on as long as the run does; those of rollout workers may end before."""
        return [*self.rewarding, *self._serving]

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

    # -- rollout workers that die -----------------------------------------------------------------

    def restart(self) -> None:
        """Let rollout workers that were started anew begin; their weights have yet to come."""
        infos = self._rollout.worker_info_list
        new = [rank for rank, info in enumerate(infos) if info.life != self._lives[rank]]
        if not new:
            return
        group = self._rollout.execute_on(*new)
        limit = self._cfg.cluster.timeouts.launch
        wait_all(group.init_worker(), timeout=limit)
        if self.is_open:
            wait_all(group.connect(self._live), timeout=limit)
        for rank in new:
            self.generating[rank] = self._generate(rank)
            self._lives[rank] = infos[rank].life
        self._restarted |= set(new)

    def accept_restarted(self) -> None:
        """Let clients use rollout workers that were started anew; they have their weights."""
        ranks, self._restarted = sorted(self._restarted), set()
        if ranks and self.is_open:
            infos = [self._rollout.worker_info_list[rank] for rank in ranks]
            self._answer(self._server.accept_engines(infos))

    def _look(self) -> None:
        """Bring rollout workers back that have died; raise what else has ended."""
        try:
            if deaths := new_deaths(self._rollout):
                raise deaths[0]
            for call in [*self.generating, *self.calls]:
                if call.done():
                    call.wait()
                    raise RuntimeError(f"{call} ended before the run did") from None
        except WorkerDied as death:
            if death.group != self._rollout.worker_group_name:
                raise
            self._recover()

    # -- what comes of it -------------------------------------------------------------------------

    def collect(self, step: int, count: int, version: int) -> None:
        """Order the sessions that a step trains on.

        Args:
            step: the step.
            count: how many.
            version: of the weights that learn from them.
        """
        self._answer(self._server.collect(step, count, version))

    def statistics(self) -> dict[str, float]:
        """Return what clients have done since the start."""
        return self._answer(self._server.statistics())

    def _answer(self, call: Any) -> Any:
        """Wait for what the endpoint answers at once, unless it hangs."""
        return wait_beside(call, self.calls, self._cfg.rollout_server.engine_timeout)[0]

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
                self._look()
            if deadline.passed():
                # An endpoint that hangs is why nobody came.
                self.statistics()
                raise TimeoutError(
                    f"step {step} waits for sessions with a reward, and none came for {patience:g} "
                    "s: are there clients, and do they POST /v1/sessions/ID/reward? "
                    f"{_left_out(self.statistics())}rollout_server.patience says how long to wait"
                )
            if tell.passed():
                tell = Deadline(_TELL_SECONDS)
                # Also notices an endpoint that hangs.
                found = self.statistics()
                print(
                    f"step {step} waits for clients; {found['sessions']:.0f} sessions have got a "
                    f"reward until now. {_left_out(found)}".rstrip(),
                    file=sys.stderr,
                    flush=True,
                )

    def validate(
        self, prompts: PromptSet, key: str, tools: bool = True, shown: bool = False
    ) -> list[Verdict]:
        """See the base; what a rollout worker was asked that died is asked again."""
        asked = self._validation_requests(prompts, key, tools, shown)
        missing = {request.prompt.index for request in asked}
        found: dict[int, Verdict] = {}
        self.request(asked)
        limit = self._cfg.cluster.timeouts.channel
        deadline = Deadline(limit)
        while missing:
            try:
                verdict = self._verdicts.get(key=key, timeout=_LOOK_SECONDS)
            except WaitTimeout:
                lives = list(self._lives)
                self._look()
                new = {rank for rank, life in enumerate(self._lives) if life != lives[rank]}
                for rank in new:
                    of_rank = asked[rank :: len(lives)]
                    again = [each for each in of_rank if each.prompt.index in missing]
                    if again:
                        self._requests.put(again, key=rank)
                if new:
                    deadline = Deadline(limit)
                elif deadline.passed():
                    raise
                continue
            found[verdict.index] = verdict
            missing.discard(verdict.index)
            deadline = Deadline(limit)
        return sorted(found.values(), key=lambda verdict: verdict.index)

    def end(self) -> None:
        """Let no more clients in, and the workers come to their end, unless one hangs."""
        limit = self._cfg.cluster.timeouts.channel
        if self._serving:
            serving = self._serving[0]
            self._answer(self._server.stop())
            self._serving = []
            wait_beside(serving, self.calls, limit)
        self._requests.close()
        for call in self.generating:
            try:
                wait_beside(call, self.calls, limit)
            except WorkerDied as death:
                # All that it was needed for is done.
                print(f"{death.worker} {death.how} at the end of the run", file=sys.stderr)
        self._responses.close()
        for call in self.rewarding:
            wait_beside(call, [other for other in self.rewarding if other is not call], limit)


def _left_out(found: Mapping[str, float]) -> str:
    """Say how many sessions there is nothing to learn from; empty if there is none."""
    if not found["unlearnt"]:
        return ""
    return (
        f"{found['unlearnt']:.0f} sessions were left out, since their clients draw otherwise than "
        "algorithm.sampling_params says (temperature, top_p, top_k). "
    )
