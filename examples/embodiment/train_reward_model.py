"""Trains a reward model on datasets: the actor learns to tell where a task is solved."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from rlinf.config import validate_cfg
from rlinf.runners.offline_data import require_datasets
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.reward_model_runner import RewardModelRunner
from rlinf.runners.run_folder import run_folder
from rlinf.scheduler import Cluster, HybridComponentPlacement
from rlinf.workers.actor.reward_model.reward_model_actor import RewardModelActor


@hydra.main(version_base="1.3", config_path="config", config_name="metaworld_reward_model_mlp")
def main(cfg: DictConfig) -> None:
    """Check the configuration and train, again from the last checkpoint if the config says so."""
    checked = validate_cfg(cfg)
    require_datasets(checked)
    run_with_restarts(checked, train)


def train(cfg: DictConfig) -> None:
    """Launch the actor and run the training loop."""
    logs = str(run_folder(cfg) / WORKERS)
    trace = cfg.runner.trace
    with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=logs, trace=trace) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        actor_group = RewardModelActor.create_group(cfg).launch(
            cluster,
            name=cfg.actor.group_name,
            placement_strategy=placement.get_strategy("actor"),
        )
        runner = RewardModelRunner(cfg=cfg, actor=actor_group)
        runner.init_workers()
        runner.run()


if __name__ == "__main__":
    main()
