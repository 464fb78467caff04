"""Trains a policy on what clients say of its answers, while it serves them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hydra
from omegaconf import DictConfig

from rlinf.config import validate_cfg
from rlinf.runners.coding_online_rl_runner import CodingOnlineRLRunner
from rlinf.runners.reasoning_helpers import launch_helpers
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.run_folder import run_folder
from rlinf.scheduler import Cluster, ModelParallelComponentPlacement
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.reward.reward_worker import RewardWorker
from rlinf.workers.rollout.online_router_worker import OnlineRouterWorker
from rlinf.workers.rollout.server_rollout_worker import ServerRolloutWorker

_END_SECONDS = 10.0


@hydra.main(version_base="1.3", config_path="config", config_name="coding_online")
def main(cfg: DictConfig) -> None:
    """Check the configuration and run, again from the last checkpoint if the config says so."""
    run_with_restarts(validate_cfg(cfg), run)


def run(cfg: DictConfig) -> None:
    """Launch the groups and run the training loop."""
    folder = run_folder(cfg)
    trace = cfg.runner.trace
    logs = str(folder / WORKERS)
    with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=logs, trace=trace) as cluster:
        placement = ModelParallelComponentPlacement(cfg, cluster)
        with cluster.launch_together():
            groups = {
                role: worker.create_group(cfg).launch(
                    cluster,
                    name=cfg[role].group_name,
                    placement_strategy=placement.get_strategy(role),
                )
                for role, worker in (
                    ("rollout", ServerRolloutWorker),
                    ("rollout_server", OnlineRouterWorker),
                    ("reward", RewardWorker),
                    ("actor", ReasoningActor),
                )
            }
            groups |= launch_helpers(cfg, cluster, placement)
        with simulated_users(cfg, folder) as traffic:
            runner = CodingOnlineRLRunner(cfg=cfg, traffic=traffic, **groups)
            runner.init_workers()
            runner.run()


@contextlib.contextmanager
def simulated_users(cfg: DictConfig, folder: Path) -> Iterator[Callable[[], None]]:
    """Play users beside the run, in a process that knows of it what any client would.

    Args:
        cfg: checked configuration.
        folder: of the run; the users find its endpoint there.

    Yields:
        What raises if they have gone.
    """
    section = cfg.rollout_server
    numbers = [str(section.simulated_users), str(section.think_seconds)]
    if not section.simulated_users or cfg.runner.only_eval:
        yield lambda: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    # One of a run that died is not to be used; this one writes its own.
    (folder / "endpoint.json").unlink(missing_ok=True)
    script = Path(__file__).with_name("simulated_editor.py")
    command = [sys.executable, str(script), str(folder), *numbers]
    users = subprocess.Popen(command, stdin=subprocess.PIPE)

    def check() -> None:
        if users.poll() is not None:
            raise RuntimeError(
                f"the simulated users ended with exit code {users.returncode}: see what they "
                "printed; set rollout_server.simulated_users to 0 to do without them"
            )

    try:
        yield check
    finally:
        # They go when their standard input ends, as it does if this process dies.
        users.stdin.close()
        try:
            users.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            users.kill()
            users.wait()


if __name__ == "__main__":
    main()
