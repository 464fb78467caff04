"""A run that waits for clients ends with a reason when there will be none, and mends engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.data.reasoning import Prompt, Verdict
from rlinf.runners import online_services
from rlinf.runners.online_services import OnlineServices
from rlinf.scheduler import WaitTimeout, WorkerDied


class Silence:
    """A channel that nobody writes to."""

    def get(self, key: Any, timeout: float) -> Any:
        raise WaitTimeout("nothing came")


@pytest.fixture(autouse=True)
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[WorkerDied]:
    """Rollout workers that have died."""
    found: list[WorkerDied] = []
    monkeypatch.setattr(online_services, "new_deaths", lambda group: found)
    return found


class Server:
    """An endpoint that answers, or hangs."""

    def __init__(self, hangs: bool = False) -> None:
        self._hangs = hangs

    def execute(self) -> SimpleNamespace:
        return SimpleNamespace(hangs=self._hangs)

    statistics = stop = execute


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is waited for until a deadline, if there is one."""

    def wait_beside(call: Any, others: Any, timeout: float | None = None) -> list[Any]:
        if call.hangs:
            assert timeout is not None, "waits for ever"
            raise WaitTimeout("the endpoint", holders=["endpoint:0 (stopped)"])
        return [{"sessions": 0.0}]

    monkeypatch.setattr(online_services, "wait_beside", wait_beside)


def services(
    patience: float,
    traffic: Any = lambda: None,
    recover: Any = lambda: None,
    server: Server | None = None,
) -> OnlineServices:
    cfg = SimpleNamespace(
        rollout_server=SimpleNamespace(patience=patience, engine_timeout=5.0),
        data=SimpleNamespace(val_group_size=1),
        cluster=SimpleNamespace(timeouts=SimpleNamespace(channel=1000.0)),
    )
    rollout = SimpleNamespace(worker_group_name="rollout", world_size=2)
    made = OnlineServices(cfg, rollout, None, server or Server(), traffic, recover)
    made._verdicts = Silence()
    return made


@pytest.mark.parametrize("unlearnt", [0.0, 7.0])
def test_patience_ends(monkeypatch: pytest.MonkeyPatch, unlearnt: float) -> None:
    """The reason names sessions that came, but have nothing to learn from."""
    waiting = services(patience=1e-6)
    monkeypatch.setattr(waiting, "statistics", lambda: {"unlearnt": unlearnt})
    with pytest.raises(TimeoutError, match="rollout_server.patience") as caught:
        waiting.next_live_verdict(3)
    assert ("7 sessions were left out" in str(caught.value)) == bool(unlearnt)


def test_an_endpoint_that_hangs_is_why_no_clients_come() -> None:
    with pytest.raises(WaitTimeout, match="endpoint:0"):
        services(patience=1e-6, server=Server(hangs=True)).next_live_verdict(3)


def test_the_end_of_a_run_does_not_wait_for_an_endpoint_that_hangs() -> None:
    ending = services(1000.0, server=Server(hangs=True))
    ending._serving = [SimpleNamespace(hangs=False, done=lambda: False)]
    with pytest.raises(WaitTimeout, match="endpoint:0"):
        ending.end()


def test_the_end_of_a_run_does_not_wait_for_an_engine_that_hangs() -> None:
    ending = services(1000.0)
    ending._requests = SimpleNamespace(close=lambda: None)
    ending.generating = [SimpleNamespace(hangs=True)]
    with pytest.raises(WaitTimeout):
        ending.end()


def test_users_that_have_gone_are_not_waited_for() -> None:
    def gone() -> None:
        raise RuntimeError("the simulated users ended")

    with pytest.raises(RuntimeError, match="users ended"):
        services(1000.0, gone).next_live_verdict(0)


def test_a_worker_that_fails_is_noticed() -> None:
    waiting = services(1000.0)

    class Failed:
        def done(self) -> bool:
            return True

        def wait(self) -> None:
            raise ValueError("the engine failed")

    waiting.generating = [Failed()]
    with pytest.raises(ValueError, match="engine failed"):
        waiting.next_live_verdict(0)


class Verdicts:
    """Answers what was asked, but nothing of a rank that is dead."""

    def __init__(self) -> None:
        self.dead, self.waiting, self.asked = {1}, [], []

    def put(self, requests: list[Any], key: int) -> None:
        self.asked.append((key, [request.prompt.index for request in requests]))
        if key not in self.dead:
            self.waiting += requests

    def get(self, key: Any, timeout: float) -> Any:
        if not self.waiting:
            raise WaitTimeout("nothing came")
        prompt = self.waiting.pop(0).prompt
        return Verdict(prompt.index, "t", [1.0], [1.0], [3], 0, 0, "", "")


def test_what_a_dead_engine_was_asked_is_asked_again(deaths: list[WorkerDied]) -> None:
    """A validation is whole, in order, although one of two engines died in it."""
    channel = Verdicts()

    def recover() -> None:
        deaths.clear()
        channel.dead.clear()
        validating._lives = ["one", "new"]

    validating = services(1000.0, recover=recover)
    validating._requests = validating._verdicts = channel
    validating._lives = ["one", "two"]
    deaths.append(WorkerDied("rollout:1"))
    prompts = [Prompt(10 + n, [1], "", "", "t", {}) for n in range(5)]

    class Prompts:
        def __len__(self) -> int:
            return len(prompts)

        def prompt(self, number: int) -> Prompt:
            return prompts[number]

    found = validating.validate(Prompts(), "validation")
    assert [verdict.index for verdict in found] == [10, 11, 12, 13, 14]
    assert channel.asked == [(0, [10, 12, 14]), (1, [11, 13]), (1, [11, 13])]


def test_the_death_of_another_worker_is_not_mended(deaths: list[WorkerDied]) -> None:
    deaths.append(WorkerDied("reward:0"))
    with pytest.raises(WorkerDied, match="reward:0"):
        services(1000.0).next_live_verdict(0)
