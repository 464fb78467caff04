"""Engines and the endpoint of a run with live traffic are killed, hung and starved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf.runners.coding_online_rl_runner import CodingOnlineRLRunner
from rlinf.scheduler import Cluster, WorkerDied
from rlinf.scheduler.cluster.shutdown import runs
from tests.e2e_tests.agent_faults.online import EXAMPLE, FEW, Clients, Endpoint, Engines, Fault
from tests.e2e_tests.reasoning.jobs import Actor, Reward, metrics_of
from tests.e2e_tests.runners import RunnerFactory
from tests.long_tests import ALL_TESTS

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., CodingOnlineRLRunner]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Makes a run that will be struck."""
    cast = {"rollout": Engines, "reward": Reward, "actor": Actor, "rollout_server": Endpoint}
    factory = RunnerFactory(cluster, EXAMPLE / "config", cast, CodingOnlineRLRunner, set())

    def start(fault: Fault, *overrides: str) -> CodingOnlineRLRunner:
        struck = {"rollout": (Engines, (fault,)), "rollout_server": (Endpoint, (fault,))}
        return factory.runner(tmp_path, "coding_online", [*FEW, *overrides], struck)

    yield start
    factory.end_of_test(sound=False)


def steps_of(runner: CodingOnlineRLRunner) -> list[dict[str, Any]]:
    return [line for line in metrics_of(runner) if "rollout/score" in line]


def assert_gone(fault: Fault) -> None:
    """The process that was struck is not left behind."""
    pid = int(fault.mark.read_text())
    assert not psutil.pid_exists(pid) or not runs(psutil.Process(pid))


FAULTS = [("kill", "serving"), ("kill", "update"), ("hang", "serving")]
MATRIX = [(kind, phase) for kind in ("kill", "hang") for phase in ("serving", "update")]


@pytest.mark.parametrize(("kind", "phase"), MATRIX if ALL_TESTS else FAULTS)
def test_clients_do_not_notice_that_an_engine_ends(start, tmp_path, kind, phase):
    fault = Fault(tmp_path, kind, phase)
    runner = start(fault, "rollout_server.engine_timeout=2")
    with Clients(runner) as clients:
        facts = runner.run()
        lines = steps_of(runner)
    assert not clients.errors and len(clients.answers) >= 3 * 8
    assert all(clients.answers), "what was carried on is not empty"
    assert len(lines) == 3 and facts["engine_restarts"] == 1
    assert sum(line["rollout/live_failed_requests"] for line in lines) == 0
    assert sum(line["rollout/live_engine_failures"] for line in lines) == 1
    assert lines[-1]["rollout/engine_restarts"] == 1
    assert_gone(fault)
