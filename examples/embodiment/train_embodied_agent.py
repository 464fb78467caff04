"""Trains an embodied agent: env, rollout, actor and reward groups on whatever the YAML names."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from rlinf.config import validate_cfg
from rlinf.config.acting import resolve_acting
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.runners.offline_data import require_demonstrations
from rlinf.runners.players import launch_players
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.reward_group import launch_reward, require_reward_model
from rlinf.runners.run_folder import run_folder
from rlinf.scheduler import Cluster, HybridComponentPlacement
from rlinf.workers.actor.embodied_fsdp_actor import EmbodiedFSDPActor


@hydra.main(version_base="1.3", config_path="config", config_name="metaworld_ppo_mlp")
def main(cfg: DictConfig) -> None:
    """Check the configuration and train, again from the last checkpoint if the config says so."""
    checked = validate_cfg(cfg)
    require_demonstrations(checked)
    require_reward_model(checked)
    run_with_restarts(checked, train)


def train(cfg: DictConfig) -> None:
    """Launch the groups and run the training loop."""
    cfg = resolve_acting(cfg)
    logs = str(run_folder(cfg) / WORKERS)
    trace = cfg.runner.trace
    with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=logs, trace=trace) as cluster:
        component_placement = HybridComponentPlacement(cfg, cluster)
        with cluster.launch_together():
            actor_group = EmbodiedFSDPActor.create_group(cfg).launch(
                cluster,
                name=cfg.actor.group_name,
                placement_strategy=component_placement.get_strategy("actor"),
            )
            rollout_group, env_group = launch_players(cfg, cluster, component_placement)
            reward_group = launch_reward(cfg, cluster, component_placement)
        runner = EmbodiedRunner(
            cfg=cfg,
            actor=actor_group,
            rollout=rollout_group,
            env=env_group,
            reward=reward_group,
        )
        runner.init_workers()
        runner.run()


if __name__ == "__main__":
    main()
