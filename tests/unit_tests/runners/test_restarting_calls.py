"""Env processes that crash while others come back: in the end all have their simulators."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rlinf.runners import restarting_calls
from rlinf.runners.restarting_calls import RestartingCalls
from rlinf.scheduler import FlexiblePlacementStrategy, WorkerDied, WorkerGroup
from tests.unit_tests.runners.simulating import Simulator


@pytest.fixture
def env(cluster):
    group = Simulator.create_group().launch(cluster, FlexiblePlacementStrategy([[0], [1]]))
    group.init_worker().wait()
    return group


def revival(env: WorkerGroup) -> Callable[[], object]:
    return lambda: (env.init_worker().wait(), env.start_over().wait())


def test_one_crashes_while_another_comes_back(env, monkeypatch):
    exchange, victims = restarting_calls.begin_exchange, [0]

    def crash_first(*groups: Any) -> None:
        # Rank 1 is back and known to be; it has yet to make its simulators.
        for rank in victims[:]:
            victims.remove(rank)
            os.kill(env.worker_info_list[rank].pid, signal.SIGKILL)
        exchange(*groups)

    monkeypatch.setattr(restarting_calls, "begin_exchange", crash_first)
    retry = RestartingCalls(env, [], 5, revival(env))
    env.execute_on(1).die_next().wait()
    (calls,) = retry.run(lambda: (env.interact(),))
    assert calls.wait() == [1, 1] and retry.restarts == 2


def test_deaths_that_others_notice_are_within_the_budget_or_not(env):
    retry = RestartingCalls(env, [], 1, revival(env))
    os.kill(env.worker_info_list[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        env.interact().wait(timeout=60)
    assert retry.comes_back(caught.value)
    (calls,) = retry.run(lambda: (env.interact(),))
    assert calls.wait() == [1, 0] and retry.restarts == 1
    os.kill(env.worker_info_list[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        env.interact().wait(timeout=60)
    assert not retry.comes_back(caught.value)
    assert not RestartingCalls(env, [], 9, revival(env)).comes_back(WorkerDied("another:0"))
