"""Workers of tools, of agent loops and of teams are killed, hung and starved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from rlinf.runners.agent_runner import AgentRunner
from rlinf.scheduler import Cluster, WaitTimeout, WorkerDied
from rlinf.scheduler.deadlines import Deadline
from tests.e2e_tests.agent_faults.agents import CONFIGS, FEW, Agents, Teams, Tools
from tests.e2e_tests.agent_faults.faults import KINDS, Fault, card_of
from tests.e2e_tests.reasoning.jobs import Actor, Reward, metrics_of
from tests.e2e_tests.runners import RunnerFactory
from tests.long_tests import ALL_TESTS

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., AgentRunner]
PATIENCE = 6.0
"""Seconds after which a run gives up one that hangs."""
LOOPS = {"calculator_agent": Agents, "wideseek_small": Teams}


@pytest.fixture
def start(own_cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Makes a run that will be struck."""
    cast = {"rollout": Agents, "reward": Reward, "actor": Actor}
    optional = {"tools": (Tools, ())}
    factory = RunnerFactory(own_cluster, CONFIGS, cast, AgentRunner, set(), optional)

    def start(fault: Fault, *overrides: str, recipe: str = "calculator_agent") -> AgentRunner:
        struck = {"rollout": (LOOPS[recipe], (fault,))}
        if recipe == "calculator_agent":
            struck["tools"] = (Tools, (fault,))
        runner = factory.runner(tmp_path, recipe, [*FEW[recipe], *overrides], struck)
        assert runner.cfg.algorithm.max_policy_age == 1, "episodes of two steps are under way"
        runner.tools = next((g for g in factory._guests if g.worker_cls_name == "Tools"), None)
        return runner

    yield start
    factory.end_of_test(sound=False)


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
    while runner.tools is not None and any(runner.tools.left_open().wait()):
        assert not deadline.passed(), "states of tools are left open"


TOOL_FAULTS = [("starve", "training"), ("hang", "training"), ("kill", "evaluation")]
"""One of each phase, and each kind."""


@pytest.mark.parametrize(
    ("kind", "phase"),
    list(product(KINDS, ("training", "evaluation"))) if ALL_TESTS else TOOL_FAULTS,
)
def test_a_worker_of_tools_costs_the_episodes_that_used_it(start, tmp_path, kind, phase):
    fault = Fault(tmp_path, kind, f"tool in {phase}")
    # Those who wait for a worker without time to compute have more than that.
    runner = start(fault, f"agentloop.tool_timeout={20 if kind == 'starve' else 1}")
    runner.run()
    failed, in_evaluation = failed_of(runner)
    if kind == "starve":
        assert fault.mark.exists() and sum(failed) == in_evaluation == 0.0
    elif phase == "training":
        # Episodes of the first two steps were under way.
        assert 0.0 < sum(failed) < 2.0 and failed[-1] == in_evaluation == 0.0
        fault.assert_gone()
    else:
        # Those of the third step were, beside the evaluation after the second.
        assert sum(failed[:2]) == 0.0 and failed[-1] < 1.0 and 0.0 < in_evaluation < 1.0
        fault.assert_gone()
    assert_nothing_is_left(runner)


LOOP_PHASES = ("training", "update", "evaluation", "end")
LOOP_FAULTS = [
    ("calculator_agent", "hang", "training"),
    ("calculator_agent", "kill", "update"),
    ("calculator_agent", "starve", "evaluation"),
    ("wideseek_small", "kill", "training"),
    ("wideseek_small", "starve", "update"),
    ("wideseek_small", "hang", "evaluation"),
]
"""Of agents, and of teams: one of each phase but the end, and each kind."""


@pytest.mark.parametrize(
    ("recipe", "kind", "phase"),
    list(product(LOOPS, KINDS, LOOP_PHASES)) if ALL_TESTS else LOOP_FAULTS,
)
def test_a_worker_of_loops_ends_the_run_by_name_or_goes_on(
    start, own_cluster, tmp_path, recipe, kind, phase
):
    """It has the engine: `runner.max_restarts` begins again from the last checkpoint."""
    fault = Fault(tmp_path, kind, f"loop in {phase}")
    overrides = []
    if kind == "hang":
        # As a run does that sets cluster.timeouts.recv and cluster.timeouts.channel.
        own_cluster.run.timeouts["recv"] = PATIENCE
        overrides = [f"cluster.timeouts.channel={PATIENCE}"]
    runner = start(fault, *overrides, recipe=recipe)
    if kind == "starve":
        runner.run()
        assert fault.mark.exists() and failed_of(runner) == ([0.0] * 3, 0.0)
        assert_nothing_is_left(runner)
        return
    with pytest.raises(WorkerDied if kind == "kill" else WaitTimeout) as raised:
        runner.run()
    card = card_of(own_cluster, raised.value)
    assert card.who == f"{runner.rollout.worker_group_name}:0"
    if kind == "kill":
        assert raised.value.signal == "SIGKILL" and "SIGKILL" in card.what
        fault.assert_gone()
    else:
        assert "stopped by a signal" in card.what
