"""Trains a policy on datasets: the actor learns, env and rollout groups only evaluate."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from rlinf.config import validate_cfg
from rlinf.config.acting import resolve_acting
from rlinf.runners.offline_data import require_datasets
from rlinf.runners.offline_runner import OfflineRunner
from rlinf.runners.players import launch_players
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.run_folder import run_folder
from rlinf.runners.sft_runner import SFTRunner
from rlinf.scheduler import Cluster, HybridComponentPlacement
from rlinf.workers.actor.embodied_fsdp_actor import EmbodiedFSDPActor
from rlinf.workers.actor.imitation.sft_worker import FSDPVlaSftWorker


@hydra.main(version_base="1.3", config_path="config", config_name="metaworld_bc_mlp")
def main(cfg: DictConfig) -> None:
    """Check the configuration and train, again from the last checkpoint if the config says so."""
    checked = validate_cfg(cfg)
    require_datasets(checked)
    run_with_restarts(checked, train)


def train(cfg: DictConfig) -> None:
    """Launch the groups and run the training loop."""
    cfg = resolve_acting(cfg)
    supervised = cfg.runner.task_type == "sft"
    actor_cls = FSDPVlaSftWorker if supervised else EmbodiedFSDPActor
    runner_cls = SFTRunner if supervised else OfflineRunner
    logs = str(run_folder(cfg) / WORKERS)
    trace = cfg.runner.trace
    with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=logs, trace=trace) as cluster:
        component_placement = HybridComponentPlacement(cfg, cluster)
        with cluster.launch_together():
            actor_group = actor_cls.create_group(cfg).launch(
                cluster,
                name=cfg.actor.group_name,
                placement_strategy=component_placement.get_strategy("actor"),
            )
            rollout_group, env_group = launch_players(cfg, cluster, component_placement)
        runner = runner_cls(cfg=cfg, actor=actor_group, rollout=rollout_group, env=env_group)
        runner.init_workers()
        runner.run()


if __name__ == "__main__":
    main()
