"""The training loop with live traffic: clients use the policy, and it learns from what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlinf.agents.serving.endpoint_file import remove_endpoint, write_endpoint
from rlinf.data.reasoning import Verdict
from rlinf.runners.online_services import OnlineServices
from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.runners.restarting_calls import Calls, RestartingCalls
from rlinf.scheduler import WorkerDied, WorkerGroup, wait_all

_LEVELS = ("waiting", "engines")
"""Gauges; all else are counters."""


class CodingOnlineRLRunner(ReasoningRunner):
    """Drives rollout, reward and actor groups through training, beside an endpoint.

    Where other runs ask for responses, this one waits for clients: a step trains on the next
    `data.rollout_batch_size` sessions that got their reward. The endpoint is open from the first
    weights to the end of the run; weights change between two tokens, and no request fails for it.
    `data` and `reward` are for the supervised start and for validations. A rollout worker that dies
    is started anew and gets the weights; the others serve its clients meanwhile.

    Args:
        cfg: checked configuration.
        actor: group of `ReasoningActor`.
        rollout: group of `ServerRolloutWorker`.
        reward: group of `RewardWorker`.
        rollout_server: group of one `OnlineRouterWorker`.
        traffic: called while the run waits for clients; raises if none will come any more.
        **helpers: groups that only some runs have; see `rlinf.runners.reasoning_helpers`.
    """

    def __init__(
        self,
        cfg: Any,
        actor: WorkerGroup,
        rollout: WorkerGroup,
        reward: WorkerGroup,
        rollout_server: WorkerGroup,
        traffic: Callable[[], None] = lambda: None,
        **helpers: WorkerGroup,
    ):
        super().__init__(cfg, actor, rollout, reward, **helpers)
        self.rollout_server = rollout_server
        self.services: OnlineServices = OnlineServices(
            cfg, rollout, reward, rollout_server, traffic, self._send_weights
        )
        self.retry = RestartingCalls(
            rollout,
            [actor, *self.helpers],
            cfg.rollout_server.max_engine_restarts,
            self.services.restart,
            then="and it gets the newest weights; clients are served meanwhile if others are left",
            key="rollout_server.max_engine_restarts",
        )
        # Clients do not wait for the actor: what they do meanwhile is for the next step.
        self._ahead = 1
        self._key: str | None = None
        self._version = 0
        self._before: dict[str, float] = {}

    def build_workers(self) -> None:
        """Build what the base does, and what speaks with clients."""
        wait_all(self.rollout_server.init_worker())
        super().build_workers()
        # Asks engines what they compute in, of which one may be away when that is needed.
        self.agreement.tolerance(0)

    def run(self) -> dict[str, Any]:
        """See the base; however it ends, `endpoint.json` names nobody who does not listen."""
        try:
            return super().run()
        finally:
            self._forget_endpoint()

    def update_rollout_weights(self) -> int:
        """Bring the actor's weights to the engines; with the first ones, let clients in."""
        self._version = self._send_weights()
        if not self.services.is_open and not self.cfg.runner.only_eval:
            facts = self.services.open()
            self._key = facts["key"]
            path = write_endpoint(self.folder, facts["url"], facts["key"], facts["model"])
            print(f"clients are served at {facts['url']}; the key is in {path}", flush=True)
        return self._version

    def _send_weights(self) -> int:
        """Bring the weights to all engines; start those anew before that have died."""

        def send() -> Calls:
            return self.rollout.sync_model_from_actor(), self.actor.sync_model_to_rollout()

        received, _ = self.retry.run(send)
        self.services.accept_restarted()
        return received.wait()[0]

    def comes_back(self, death: WorkerDied) -> bool:
        """Rollout workers do, as long as there is something left of their budget."""
        return self.retry.comes_back(death)

    @property
    def _streams_groups(self) -> bool:
        # An actor that waits for clients could not send weights to an engine that has lost them.
        return False

    @contextmanager
    def _training_aside(self) -> Iterator[None]:
        # Clients and evaluations share the engines, which have the newest weights.
        yield

    def train_step(self) -> dict[str, float]:
        """Train on sessions of clients, and say what they did meanwhile."""
        metrics = super().train_step()
        now = self.services.statistics()
        for name, value in now.items():
            before = 0.0 if name in _LEVELS else self._before.get(name, 0.0)
            metrics[f"rollout/live_{name}"] = value - before
        self._before = now
        metrics["rollout/engine_restarts"] = float(self.retry.restarts)
        return metrics

    def _request_steps(self, until: int) -> None:
        self._requested = max(self._requested, self.global_step)
        while self._requested < min(until, self.max_steps):
            ahead = self._requested - self.global_step
            self.services.collect(self._requested, self._batch, self._version + ahead)
            self._asked[self._requested] = self._batch
            self._requested += 1

    def _await_groups(self, step: int) -> list[Verdict]:
        count = self._asked.pop(step)
        return [self.services.next_live_verdict(step) for _ in range(count)]

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """What the base shows, and how many requests there were."""
        facts = super().headline(metrics)
        facts["requests"] = f"{metrics['rollout/live_requests']:.0f}"
        return facts

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """What the base counts, and what clients did."""
        known = {f"live_{name}": value for name, value in self._before.items()}
        return {
            **super().totals(training_seconds),
            **known,
            "engine_restarts": self.retry.restarts,
        }

    def end_services(self) -> None:
        """Let no more clients in, and the workers come to their end."""
        self._forget_endpoint()
        super().end_services()

    def _forget_endpoint(self) -> None:
        if self._key is not None:
            remove_endpoint(self.folder, self._key)
