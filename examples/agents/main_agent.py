"""Trains or evaluates an agent: worker groups on whatever the YAML names."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from rlinf.agents.loops import loop_registry
from rlinf.agents.team import TeamLoop
from rlinf.config import validate_cfg
from rlinf.runners.agent_runner import AgentRunner, launch_tools
from rlinf.runners.reasoning_helpers import launch_helpers
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.run_folder import run_folder
from rlinf.scheduler import Cluster, ModelParallelComponentPlacement
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.reward.reward_worker import RewardWorker
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker
from rlinf.workers.rollout.multi_agent_loop_worker import MultiAgentLoopWorker


@hydra.main(version_base="1.3", config_path="config", config_name="calculator_agent")
def main(cfg: DictConfig) -> None:
    """Check the configuration and run, again from the last checkpoint if the config says so."""
    run_with_restarts(validate_cfg(cfg), run)


def run(cfg: DictConfig) -> None:
    """Launch the groups and run the training loop."""
    logs = str(run_folder(cfg) / WORKERS)
    trace = cfg.runner.trace
    team = issubclass(loop_registry.lookup(cfg.agentloop.type), TeamLoop)
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
                    ("rollout", MultiAgentLoopWorker if team else AgentLoopWorker),
                    ("reward", RewardWorker),
                    ("actor", ReasoningActor),
                )
            }
            groups |= launch_helpers(cfg, cluster, placement)
            groups |= launch_tools(cfg, cluster, placement)
        runner = AgentRunner(cfg=cfg, **groups)
        runner.init_workers()
        runner.run()


if __name__ == "__main__":
    main()
