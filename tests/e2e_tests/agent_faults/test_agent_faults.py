"""Workers of tools, and of agent loops, are killed, hung and starved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf.runners.agent_runner import AgentRunner
from rlinf.scheduler import Cluster, WaitTimeout, WorkerDied
from rlinf.scheduler.deadlines import Deadline
from tests.e2e_tests.agent_faults.agents import CONFIGS, FEW, Agents, Tools
from tests.e2e_tests.agent_faults.faults import Fault
from tests.e2e_tests.reasoning.jobs import Actor, Reward, metrics_of
from tests.e2e_tests.runners import RunnerFactory
from tests.long_tests import ALL_TESTS

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., AgentRunner]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Makes a run that will be struck."""
    cast = {"rollout": Agents, "reward": Reward, "actor": Actor, "tools": Tools}
    factory = RunnerFactory(cluster, CONFIGS, cast, AgentRunner, set())

    def start(fault: Fault, *overrides: str) -> AgentRunner:
        struck = {"rollout": (Agents, (fault,)), "tools": (Tools, (fault,))}
        runner = factory.runner(tmp_path, "calculator_agent", [*FEW, *overrides], struck)
        runner.tools = struck_tools(factory)
        return runner

    yield start
    factory.end_of_test(sound=False)


def struck_tools(factory: RunnerFactory) -> Any:
    return next(group for group in factory._guests if group.worker_cls_name == "Tools")


def failed_of(runner: AgentRunner) -> tuple[list[float], float]:
    """Share of the episodes that failed, of each step, and of evaluations."""
    lines = metrics_of(runner)
    steps = [line for line in lines if "rollout/failed" in line]
    assert len(steps) == 3, "the run went on"
    for line in steps:
        # Who failed is no part of its group and of its baseline.
        assert line["rollout/episodes_left_out"] == pytest.approx(line["rollout/failed"])
        assert line["rollout/samples"] == pytest.approx(16 * (1 - line["rollout/failed"]))
    evaluated = [line["eval/failed"] for line in lines if "eval/failed" in line]
    return [line["rollout/failed"] for line in steps], sum(evaluated)


def assert_nothing_is_left(runner: AgentRunner) -> None:
    assert runner.rollout.left_open().wait() == [0]
    # Workers of tools are told of the end of an episode, and nobody waits for that.
    deadline = Deadline(30.0)
    while any(runner.tools.left_open().wait()):
        assert not deadline.passed(), "states of tools are left open"


PHASES = ("training", "evaluation")
MATRIX = [(kind, phase) for kind in ("kill", "hang", "starve") for phase in PHASES]
FAULTS = [("kill", "evaluation"), ("hang", "training"), ("starve", "training")]
"""One of each phase, and each kind."""


@pytest.mark.parametrize(("kind", "phase"), MATRIX if ALL_TESTS else FAULTS)
def test_a_worker_of_tools_costs_the_episodes_that_used_it(start, tmp_path, kind, phase):
    fault = Fault(tmp_path, kind, f"tool in {phase}")
    # Those who wait for a worker without time to compute have more than that.
    runner = start(fault, f"agentloop.tool_timeout={20 if kind == 'starve' else 1}")
    runner.run()
    failed, in_evaluation = failed_of(runner)
    if kind == "starve":
        assert fault.mark.exists() and sum(failed) == in_evaluation == 0.0
    elif phase == "training":
        assert 0.0 < sum(failed) < 1.0 and failed[-1] == in_evaluation == 0.0
        fault.assert_gone()
    else:
        assert sum(failed) == 0.0 and 0.0 < in_evaluation < 1.0
        fault.assert_gone()
    assert_nothing_is_left(runner)


LOOP_PHASES = ("training", "update", "evaluation")
LOOP_MATRIX = [(kind, phase) for kind in ("kill", "starve") for phase in LOOP_PHASES]
LOOP_FAULTS = [("kill", "training"), ("starve", "evaluation"), ("kill", "update")]


@pytest.mark.parametrize(("kind", "phase"), LOOP_MATRIX if ALL_TESTS else LOOP_FAULTS)
def test_a_worker_of_loops_ends_the_run_by_name_or_goes_on(start, tmp_path, kind, phase):
    """It has the engine: `runner.max_restarts` begins again from the last checkpoint."""
    fault = Fault(tmp_path, kind, f"loop in {phase}")
    runner = start(fault)
    if kind == "kill":
        with pytest.raises(WorkerDied, match=runner.rollout.worker_group_name) as raised:
            runner.run()
        assert raised.value.signal == "SIGKILL"
        fault.assert_gone()
        return
    runner.run()
    assert fault.mark.exists() and failed_of(runner) == ([0.0] * 3, 0.0)
    assert_nothing_is_left(runner)


@pytest.mark.skipif(not ALL_TESTS, reason="waits for a deadline: set RLINF_ALL_TESTS=1")
def test_a_worker_of_loops_that_hangs_ends_the_run_at_a_deadline(start, tmp_path):
    runner = start(Fault(tmp_path, "hang", "loop in training"), "cluster.timeouts.channel=5")
    with pytest.raises(WaitTimeout, match="verdicts"):
        runner.run()
