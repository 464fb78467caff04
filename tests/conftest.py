"""One Ray for the whole test session; each test that needs a cluster gets a fresh one on it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from tests.fork_server import ForkServer, serving_ray

MODULES = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "rlinf.workers.env.env_worker",
    "rlinf.workers.actor.embodied_fsdp_actor",
    "rlinf.workers.rollout.multi_step_rollout_worker",
    "transformers.modeling_utils",
    "rlinf.workers.actor.reasoning_actor",
    "rlinf.workers.rollout.generation_worker",
    "transformers.models.qwen3.modeling_qwen3",
)
"""What workers of most tests import."""

# Tests choose where they run; an exported address must not send them to somebody's cluster.
os.environ.pop("RAY_ADDRESS", None)
# Ray reads this when it is first imported, which some tests do before a cluster is made.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Every test leaves log files of workers behind. Ray's log monitor would look for new ones among all
# of them ten times a second; so it does twice a second. Nobody looks at what its agent measures.
os.environ["RAY_LOG_MONITOR_MANY_FILES_THRESHOLD"] = "0"
os.environ["REPORTER_UPDATE_INTERVAL_MS"] = "3600000"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave modules and tests, which stay to the end, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray of our own on loopback, whose workers are forks."""
    from rlinf.scheduler.cluster.ray_session import RaySession

    with ForkServer(MODULES) as fork_server:
        with serving_ray(fork_server.address):
            session = RaySession(None, dashboard=False, num_cpus=None, namespace="tests")
        yield
        session.close()


@pytest.fixture(scope="session")
def ray_address(ray_session: None) -> str:
    """For programs that need not start a Ray of their own: their RAY_ADDRESS."""
    import ray

    return ray.get_runtime_context().gcs_address


@pytest.fixture
def cluster(ray_session: None, tmp_path: object) -> Iterator[object]:
    """A cluster of one node with eight CPU slots."""
    from rlinf.scheduler import Cluster

    with Cluster(num_nodes=1, distributed_log_dir=str(tmp_path)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """As `cluster`, but one for all tests of a module."""
    from rlinf.scheduler import Cluster

    logs = str(tmp_path_factory.mktemp("logs"))
    with Cluster(num_nodes=1, distributed_log_dir=logs) as cluster:
        yield cluster
