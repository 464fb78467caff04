"""A rank that fails is told of, although others of its group go on."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.scheduler import Channel, FlexiblePlacementStrategy, wait_all
from tests.unit_tests.runners.serving import Service

TWO = FlexiblePlacementStrategy([[0], [1]])


class Prompts:
    def close(self) -> None:
        pass


@pytest.fixture
def make_runner(shared_cluster):
    """Makes a runner of which nothing is there but its services."""

    def make(fails: str) -> ReasoningRunner:
        runner = object.__new__(ReasoningRunner)
        # Nobody waits that long: a test ends before.
        runner.cfg = OmegaConf.create({"cluster": {"timeouts": {"channel": 1000}}})
        runner.prompts = Prompts()
        for role in ("rollout", "reward"):
            group = Service.create_group(role == fails)
            name = f"{role} while {fails} fails"
            setattr(runner, role, group.launch(shared_cluster, TWO, name=name))
        for name in ("requests", "responses", "rewarded", "verdicts"):
            setattr(runner, name, Channel.create(f"{name} while {fails} fails"))
        runner._start_services()
        return runner

    return make


@pytest.mark.parametrize("role", ["rollout", "reward"])
def test_who_waits_for_verdicts_is_told_of_one_rank(make_runner, role):
    runner = make_runner(role)
    with pytest.raises(LookupError, match="rank 1 lost its way"):
        runner._next_verdict(0)
    calls = runner._generating if role == "rollout" else runner._rewarding
    assert [call.done() for call in calls] == [False, True]


def test_a_service_that_ends_too_soon_is_told_of_and_all_end_when_they_should(make_runner):
    runner = make_runner("nobody")
    runner.rollout.execute_on(0).end().wait()
    with pytest.raises(RuntimeError, match="rollout.* ended before the run did"):
        runner._next_verdict(0)
    wait_all(runner.rollout.end(), runner.reward.end())
    runner.end_services()
    assert all(call.done() for call in runner._services)
