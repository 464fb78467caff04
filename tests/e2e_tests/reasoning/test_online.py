"""Live traffic for real: users over HTTP, two engines, and weights that change while they serve."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.runners.coding_online_rl_runner import CodingOnlineRLRunner
from rlinf.scheduler import Cluster
from rlinf.workers.rollout.online_router_worker import OnlineRouterWorker
from rlinf.workers.rollout.server_rollout_worker import ServerRolloutWorker
from tests.e2e_tests.reasoning.jobs import Actor, Reward, metrics_of
from tests.e2e_tests.runners import BeginsAgain, RunnerFactory

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "coding_online_rl"
SHORT = [
    "runner.max_steps=4",
    "runner.val_check_interval=2",
    "cluster.component_placement.rollout=0-1",
    "actor.supervised.steps=40",
    "actor.supervised.batch_size=32",
    "data.rollout_batch_size=16",
    "data.depth=1",
    "data.val_size=20",
    "rollout_server.simulated_users=6",
]


class Engines(BeginsAgain, ServerRolloutWorker):
    """Leaves the other cores to the other tests."""

    async def init_worker(self) -> None:
        await super().init_worker()
        torch.set_num_threads(1)

    async def written(self) -> float:
        """Tokens that the engine wrote."""
        return self.engine.stats()["new_tokens"]


class Endpoint(BeginsAgain, OnlineRouterWorker):
    """Serves one test after the other."""


@pytest.fixture
def online(cluster: Cluster) -> Iterator[RunnerFactory]:
    """Makes runners with live traffic."""
    cast = {"rollout": Engines, "reward": Reward, "actor": Actor, "rollout_server": Endpoint}
    factory = RunnerFactory(cluster, EXAMPLE / "config", cast, CodingOnlineRLRunner, set())
    yield factory
    factory.end_of_test(sound=False)


@pytest.fixture
def example() -> Any:
    """The program of the example."""
    path = EXAMPLE / "main_coding_online_rl.py"
    spec = importlib.util.spec_from_file_location("main_coding_online_rl", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(240)
def test_users_are_served_while_their_policy_learns(online, example, tmp_path):
    runner = online.runner(tmp_path, "coding_online", SHORT)
    start = runner.actor.weights().wait()[0]
    with example.simulated_users(runner.cfg, runner.folder) as traffic:
        runner.services.traffic = traffic
        facts = runner.run()
    assert not (runner.folder / "endpoint.json").exists(), "nobody listens any more"
    found = runner.actor.weights().wait()[0]
    assert any(not torch.equal(start[name], found[name]) for name in start)

    users = [json.loads(line) for line in (runner.folder / "users.jsonl").open()]
    # Those whose request was under way when the run had ended.
    failed = [user["error"] for user in users if user.get("failed")]
    assert len(failed) <= 6 and len(users) - len(failed) >= 4 * 16
    served = [user for user in users if not user.get("failed")]
    assert len({version for user in served for version in user["versions"]}) >= 4
    assert any(user["accepted"] for user in served)
    assert all(count > 0 for count in runner.rollout.written().wait()), "all engines have worked"

    lines = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert len(lines) == 4
    assert sum(line["rollout/live_failed_requests"] for line in lines) == 0
    assert all(line["rollout/live_sessions"] >= 0 for line in lines)
    assert facts["live_sessions"] >= 4 * 16
    # What engines say of their tokens is what the trainer finds, whatever came in between.
    # A step whose tokens are all of older weights has nothing to compare; the first one has.
    gaps = [line.get("train/actor/rollout_gap_max", math.nan) for line in lines]
    assert max(gap for gap in gaps if not math.isnan(gap)) < 1e-4
    assert facts["evaluation"]["eval/pass@1"] >= 0


@pytest.mark.timeout(240)
def test_a_run_that_fails_leaves_no_address_behind(online, tmp_path):
    """Clients would ask somebody who does not listen, or who got the port since."""
    few = [*SHORT[1:], "runner.max_steps=1", "runner.val_check_interval=-1"]
    runner = online.runner(tmp_path, "coding_online", [*few, "actor.supervised.steps=0"])
    seen = []

    def no_clients() -> None:
        seen.append((runner.folder / "endpoint.json").exists())
        raise ConnectionError("all users have gone home")

    runner.services.traffic = no_clients
    with pytest.raises(ConnectionError, match="gone home"):
        runner.run()
    assert seen == [True]
    assert not (runner.folder / "endpoint.json").exists()
    assert json.loads((runner.folder / "summary.json").read_text())["status"] == "failed"
