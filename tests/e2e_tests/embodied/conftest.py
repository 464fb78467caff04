"""Worker processes that serve all whole jobs of embodied training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.runners.offline_runner import OfflineRunner
from rlinf.runners.sft_runner import SFTRunner
from rlinf.scheduler import Cluster
from tests.e2e_tests.embodied.workers import ActingEnv, Actor, Env, Reward, Rollout
from tests.e2e_tests.runners import RunnerFactory

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "embodiment" / "config"
CAST = {"actor": Actor, "rollout": Rollout, "env": Env}
KEPT = {
    *(("actor", "0"), ("actor", "0-1")),
    *(("rollout", "0"), ("rollout", "2"), ("env", "0-1")),
    ("acting", "0-1"),
}


def make_runner(cfg: Any, **groups: Any) -> Any:
    """The runner of a configuration's task type."""
    runner = {"offline": OfflineRunner, "sft": SFTRunner}.get(cfg.runner.task_type, EmbodiedRunner)
    return runner(cfg, **groups)


@pytest.fixture(scope="session")
def own_runners(cluster: Cluster) -> RunnerFactory:
    """The processes, for fixtures that live longer than a test."""
    optional = {"reward": (Reward, ())}
    return RunnerFactory(cluster, CONFIGS, CAST, make_runner, KEPT, optional, acting=ActingEnv)


@pytest.fixture
def runners(own_runners: RunnerFactory, request: pytest.FixtureRequest) -> Iterator[RunnerFactory]:
    """Makes runners; its processes serve one test after the other."""
    failed = request.session.testsfailed
    yield own_runners
    own_runners.end_of_test(sound=request.session.testsfailed == failed)
