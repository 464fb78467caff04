"""Worker processes that serve all whole jobs of language models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.scheduler import Cluster
from tests.e2e_tests.reasoning.jobs import CONFIGS, Actor, Critic, Inference, Reward, Rollout
from tests.e2e_tests.runners import RunnerFactory

CAST = {"rollout": Rollout, "reward": Reward, "actor": Actor}
OPTIONAL = {
    "inference": (Inference, ("inference",)),
    "reference": (Inference, ("reference",)),
    "critic": (Critic, ()),
}
KEPT = {("actor", "0"), ("actor", "0-1"), ("rollout", "0"), ("reward", "0")}


@pytest.fixture(scope="session")
def own_runners(cluster: Cluster) -> RunnerFactory:
    """The processes."""
    return RunnerFactory(cluster, CONFIGS, CAST, ReasoningRunner, KEPT, OPTIONAL)


@pytest.fixture
def runners(own_runners: RunnerFactory, request: pytest.FixtureRequest) -> Iterator[RunnerFactory]:
    """Makes runners; its processes serve one test after the other."""
    failed = request.session.testsfailed
    yield own_runners
    own_runners.end_of_test(sound=request.session.testsfailed == failed)
