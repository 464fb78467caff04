"""Engines and the endpoint of a run with live traffic are killed, hung and starved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rlinf.runners.coding_online_rl_runner import CodingOnlineRLRunner
from rlinf.scheduler import Cluster, WaitTimeout, WorkerDied
from tests.e2e_tests.agent_faults.faults import KINDS, Fault, card_of
from tests.e2e_tests.agent_faults.online import EXAMPLE, FEW, Clients, Endpoint, Engines
from tests.e2e_tests.reasoning.jobs import Actor, Reward, metrics_of
from tests.e2e_tests.runners import RunnerFactory
from tests.long_tests import ALL_TESTS

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., CodingOnlineRLRunner]


@pytest.fixture
def start(own_cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Makes a run that will be struck."""
    cast = {"rollout": Engines, "reward": Reward, "actor": Actor, "rollout_server": Endpoint}
    factory = RunnerFactory(own_cluster, EXAMPLE / "config", cast, CodingOnlineRLRunner, set())

    def start(fault: Fault, *overrides: str) -> CodingOnlineRLRunner:
        struck = {"rollout": (Engines, (fault,)), "rollout_server": (Endpoint, (fault,))}
        return factory.runner(tmp_path, "coding_online", [*FEW, *overrides], struck)

    start.end = lambda: factory.end_of_test(sound=False)
    yield start
    factory.end_of_test(sound=False)


def steps_of(runner: CodingOnlineRLRunner) -> list[dict[str, Any]]:
    return [line for line in metrics_of(runner) if "rollout/score" in line]


ENGINE_FAULTS = [
    ("kill", "serving"),
    ("hang", "update"),
    ("starve", "evaluation"),
]
"""One of each phase, and each kind."""


@pytest.mark.parametrize(
    ("kind", "phase"),
    list(product(KINDS, ("serving", "update", "evaluation"))) if ALL_TESTS else ENGINE_FAULTS,
)
def test_clients_do_not_notice_what_happens_to_an_engine(start, tmp_path, kind, phase):
    fault = Fault(tmp_path, kind, f"engine in {phase}")
    evaluates = f"runner.val_check_interval={2 if phase == 'evaluation' else -1}"
    # One that has died is noticed at once, and one that gets time again is not given up.
    patience = f"rollout_server.engine_timeout={2 if kind == 'hang' else 300}"
    runner = start(fault, patience, evaluates)
    with Clients(runner) as clients:
        facts = runner.run()
        lines = steps_of(runner)
    lost = int(kind != "starve")
    assert not clients.errors and len(clients.answers) >= 3 * 8
    assert all(clients.answers), "what was carried on is not empty"
    assert len(lines) == 3 and facts["engine_restarts"] == lost
    assert sum(line["rollout/live_failed_requests"] for line in lines) == 0
    assert sum(line["rollout/live_engine_failures"] for line in lines) == lost
    assert lines[-1]["rollout/engine_restarts"] == lost
    if phase == "evaluation":
        # All prompts have their answer, also those that the dead engine had been asked.
        assert facts["evaluation"]["eval/prompts"] == 12
    # Only the one that was struck was started anew.
    (restarts, _), (others, _) = runner.rollout.written().wait()
    assert (restarts, others) == (lost, 0)
    if lost:
        fault.assert_gone()
    assert fault.mark.exists()


def test_requests_wait_for_the_only_engine_and_then_the_run_ends(start, tmp_path, capfd):
    """One restart is allowed, and the engine dies twice."""
    fault = Fault(tmp_path, "kill", "engine in serving", again=True)
    one = ["cluster.component_placement.rollout=0", "rollout_server.max_engine_restarts=1"]
    runner = start(fault, *one)
    with Clients(runner) as clients:
        with pytest.raises(WorkerDied, match="RolloutGroup:0") as raised:
            runner.run()
        told = list(clients.errors)
        # As a run does that has failed.
        start.end()
    assert raised.value.signal == "SIGKILL"
    said = capfd.readouterr().err
    assert "restart 1 of at most 1" in said
    assert "1 restarts are over; raise rollout_server.max_engine_restarts" in said
    # Nobody was told of the first death, and those of the second wait for an endpoint that ends.
    assert not told
    fault.assert_gone()


ENDPOINT_FAULTS = [
    ("kill", "collecting"),
    ("kill", "serving"),
    ("starve", "update"),
    ("hang", "evaluation"),
]
"""One of each phase, and each kind."""


@pytest.mark.parametrize(
    ("kind", "phase"),
    list(product(KINDS, ("collecting", "serving", "update", "evaluation")))
    if ALL_TESTS
    else ENDPOINT_FAULTS,
)
def test_a_run_without_its_endpoint_ends_and_says_so(start, own_cluster, tmp_path, kind, phase):
    fault = Fault(tmp_path, kind, f"endpoint in {phase}")
    # Evaluations are the last thing of the run: nobody asks the endpoint for sessions after them.
    overrides = [f"runner.val_check_interval={3 if phase == 'evaluation' else -1}"]
    if kind == "hang":
        overrides += ["rollout_server.engine_timeout=4", "rollout_server.patience=5"]
    runner = start(fault, *overrides)
    if kind == "starve":
        with Clients(runner) as clients:
            facts = runner.run()
            lines = steps_of(runner)
        assert not clients.errors and len(clients.answers) >= 3 * 8 and all(clients.answers)
        assert len(lines) == 3 and facts["engine_restarts"] == 0
        assert sum(line["rollout/live_failed_requests"] for line in lines) == 0
        assert fault.mark.exists()
        return
    with Clients(runner):
        with pytest.raises(WorkerDied if kind == "kill" else WaitTimeout) as raised:
            runner.run()
        card = card_of(own_cluster, raised.value)
        # As a run does that has failed; clients are told then, if not before.
        start.end()
    assert card.who == f"{runner.rollout_server.worker_group_name}:0"
    assert ("SIGKILL" if kind == "kill" else "stopped by a signal") in card.what
    fault.assert_gone()
