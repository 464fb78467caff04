"""A rollout is played again after a crash, also if another crash comes on the way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf.runners import rollout_retry as module
from rlinf.runners.rollout_retry import RolloutRetry
from rlinf.scheduler import WorkerDied


class Call:
    """A call that goes well, or fails when it is waited for."""

    def __init__(self, error: Exception | None = None):
        self._error = error

    def wait(self) -> None:
        if self._error is not None:
            raise self._error


class Envs:
    """Env workers that die as planned: at each restart, and in calls of `init_worker`."""

    worker_group_name = "env"

    def __init__(self, crashes: list[int | None]):
        self.crashes = crashes
        self.dead: list[int] = []
        self.built: list[list[int]] = []
        self.lives = [0, 0]

    @property
    def worker_info_list(self):
        return [SimpleNamespace(incarnation=lives) for lives in self.lives]

    def die(self, rank: int) -> WorkerDied:
        self.dead.append(rank)
        return WorkerDied(f"env:{rank}", pid=1, signal="SIGKILL")

    def restart(self) -> list[int]:
        dead, self.dead = sorted(set(self.dead)), []
        for rank in dead:
            self.lives[rank] += 1
        return dead

    def execute_on(self, *ranks: int):
        def init_worker() -> Call:
            self.built.append(list(ranks))
            crash = self.crashes.pop(0)
            return Call(None if crash is None else self.die(crash))

        return SimpleNamespace(init_worker=init_worker)

    def start_over(self) -> Call:
        return Call()


@pytest.fixture
def stage(monkeypatch):
    """Replaces the scheduler by one that knows of `Envs` only."""

    def wait_all(*calls: Call) -> None:
        for call in calls:
            call.wait()

    def new_deaths(env: Envs) -> list[WorkerDied]:
        return [WorkerDied(f"env:{rank}", pid=1, signal="SIGKILL") for rank in env.dead]

    monkeypatch.setattr(module, "wait_all", wait_all)
    monkeypatch.setattr(module, "new_deaths", new_deaths)
    monkeypatch.setattr(module, "wait_restarted", Envs.restart)
    monkeypatch.setattr(module, "call_off", lambda *calls: [])
    monkeypatch.setattr(module, "give_up", lambda *calls: None)
    monkeypatch.setattr(module, "begin_exchange", lambda *groups: None)


@pytest.mark.parametrize(
    "crashes, built",
    [
        ([None], [[0]]),
        ([0, None], [[0], [0]]),
        ([1, None], [[0], [0, 1]]),
        ([1, 1, None], [[0], [0, 1], [0, 1]]),
    ],
)
def test_whoever_was_not_built_is_built_although_another_has_crashed(stage, crashes, built):
    env = Envs(list(crashes))
    attempts = []

    def start() -> list[Call]:
        attempts.append(1)
        return [Call(env.die(0) if len(attempts) == 1 else None)]

    retry = RolloutRetry(env, [], budget=5)
    retry.play(start)
    assert env.built == built and len(attempts) == 2
    assert retry.restarts == len(crashes)


def test_the_budget_holds_on_the_way_back_as_well(stage):
    env = Envs([1])
    retry = RolloutRetry(env, [], budget=1)
    with pytest.raises(WorkerDied, match="env:1"):
        retry.play(lambda: [Call(env.die(0))])
