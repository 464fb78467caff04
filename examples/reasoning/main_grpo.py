"""Trains or evaluates a language model, or evaluates an agent, wherever the YAML says."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from rlinf.config import validate_cfg
from rlinf.runners.agent_eval_runner import AgentEvalRunner
from rlinf.runners.reasoning_eval_runner import ReasoningEvalRunner
from rlinf.runners.reasoning_helpers import launch_helpers
from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.runners.restarts import WORKERS, run_with_restarts
from rlinf.runners.run_folder import run_folder
from rlinf.scheduler import Cluster, ModelParallelComponentPlacement
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.reward.reward_worker import RewardWorker
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker
from rlinf.workers.rollout.generation_worker import GenerationWorker


@hydra.main(version_base="1.3", config_path="config", config_name="arithmetic_grpo")
def main(cfg: DictConfig) -> None:
    """Check the configuration and run, again from the last checkpoint if the config says so."""
    run_with_restarts(validate_cfg(cfg), run)


def run(cfg: DictConfig) -> None:
    """Launch the groups and run the training loop, or the evaluation alone."""
    logs = str(run_folder(cfg) / WORKERS)
    trace = cfg.runner.trace
    with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=logs, trace=trace) as cluster:
        component_placement = ModelParallelComponentPlacement(cfg, cluster)
        evaluates = cfg.runner.task_type == "reasoning_eval"
        # With tools, only the evaluation is here: main_agent.py trains.
        agents = cfg.get("agentloop") is not None
        with cluster.launch_together():
            worker = AgentLoopWorker if agents else GenerationWorker
            groups = {
                "rollout": worker.create_group(cfg).launch(
                    cluster,
                    name=cfg.rollout.group_name,
                    placement_strategy=component_placement.get_strategy("rollout"),
                ),
                "reward": RewardWorker.create_group(cfg).launch(
                    cluster,
                    name=cfg.reward.group_name,
                    placement_strategy=component_placement.get_strategy("reward"),
                ),
            }
            if not evaluates:
                groups["actor"] = ReasoningActor.create_group(cfg).launch(
                    cluster,
                    name=cfg.actor.group_name,
                    placement_strategy=component_placement.get_strategy("actor"),
                )
                groups |= launch_helpers(cfg, cluster, component_placement)
        kind = AgentEvalRunner if agents else ReasoningEvalRunner
        runner = (kind if evaluates else ReasoningRunner)(cfg=cfg, **groups)
        runner.init_workers()
        runner.run()


if __name__ == "__main__":
    main()
