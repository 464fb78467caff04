"""Rollout and reward workers of language models, which serve through a whole run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from rlinf.data.prompts import PromptSet
from rlinf.data.reasoning import GroupRequest, Verdict
from rlinf.scheduler import Channel, WaitTimeout, WorkerGroup, wait_beside
from rlinf.scheduler.deadlines import Deadline

_LOOK_SECONDS = 1.0
_numbers = itertools.count()


def channel_factory() -> Callable[..., Channel]:
    """Return what creates the channels of a runner; those of an earlier one may be closed."""
    number = next(_numbers)

    def create(name: str, **settings: Any) -> Channel:
        return Channel.create(name if number == 0 else f"{name} {number}", **settings)

    return create


class ReasoningServices:
    """Takes requests and gives verdicts.

    Requests go into a channel; responses come out of the rollout as they are complete, get their
    reward, and wait in `rewarded` under their key. What is told of them is their verdict.

    Args:
        cfg: checked configuration.
        rollout: group of `GenerationWorker`.
        reward: group of `RewardWorker`.

    Attributes:
        rewarded: groups to train on.
    """

    def __init__(self, cfg: Any, rollout: WorkerGroup, reward: WorkerGroup) -> None:
        self._cfg = cfg
        self._rollout, self._reward = rollout, reward
        self.generating: list[Any] = []
        self.rewarding: list[Any] = []

    _survives_engines = False
    """Whether rollout workers may die and be started anew."""

    def start(self, create: Callable[..., Channel]) -> None:
        """Let the workers begin; they have been initialised.

        Args:
            create: makes a channel of a name, with settings of `Channel.create`.
        """
        self._requests = create("requests", redeliver=self._survives_engines)
        names = ("responses", "rewarded", "verdicts")
        self._responses, self.rewarded, self._verdicts = map(create, names)
        # One call for each rank: that of a rank that fails has ended, although others go on.
        self.generating = [self._generate(rank) for rank in range(self._rollout.world_size)]
        self.rewarding = [
            self._reward.execute_on(rank).compute_rewards(
                self._responses, self.rewarded, self._verdicts
            )
            for rank in range(self._reward.world_size)
        ]

    def _generate(self, rank: int) -> Any:
        return self._rollout.execute_on(rank).rollout(self._requests, self._responses)

    @property
    def calls(self) -> list[Any]:
        """Calls that go on as long as the run does."""
        return [*self.generating, *self.rewarding]

    def request(self, requests: list[GroupRequest]) -> None:
        """Deal requests to the rollout workers, always in the same way."""
        workers = self._rollout.world_size
        for rank in range(workers):
            if requests[rank::workers]:
                self._requests.put(requests[rank::workers], key=rank)

    def next_verdict(self, key: int | str) -> Verdict:
        """Return the next verdict under a key, as long as all workers live."""
        limit = self._cfg.cluster.timeouts.channel
        deadline = Deadline(limit)
        while True:
            try:
                return self._verdicts.get(key=key, timeout=_LOOK_SECONDS)
            except WaitTimeout:
                for call in self.calls:
                    if call.done():
                        call.wait()
                        raise RuntimeError(f"{call} ended before the run did") from None
                if deadline.passed():
                    raise

    def validate(
        self, prompts: PromptSet, key: str, tools: bool = True, shown: bool = False
    ) -> list[Verdict]:
        """Let the rollout answer all prompts of a set; return verdicts in their order.

        Args:
            prompts: the validation set.
            key: what the responses wait under.
            tools: whether agents have their tools.
            shown: whether people see the first response to each prompt.
        """
        asked = self._validation_requests(prompts, key, tools, shown)
        self.request(asked)
        verdicts = [self.next_verdict(key) for _ in asked]
        return sorted(verdicts, key=lambda verdict: verdict.index)

    def _validation_requests(
        self, prompts: PromptSet, key: str, tools: bool, shown: bool
    ) -> list[GroupRequest]:
        size = self._cfg.data.val_group_size
        asked = [prompts.prompt(number) for number in range(len(prompts))]
        return [GroupRequest(prompt, size, key, True, size == 1, tools, shown) for prompt in asked]

    def end(self) -> None:
        """Let the workers come to their end, unless one hangs."""
        limit = self._cfg.cluster.timeouts.channel
        for channel, calls in (
            (self._requests, self.generating),
            (self._responses, self.rewarding),
        ):
            channel.close()
            for call in calls:
                wait_beside(call, [other for other in self.calls if other is not call], limit)
