"""The group of reward workers of an embodied run: launched, checked before, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.config.scoring import uses_reward_model
from rlinf.scheduler import Cluster, ComponentPlacement, WorkerGroup
from rlinf.workers.reward.embodied_reward_worker import EmbodiedRewardWorker
from rlinf.workers.reward.reward_models import find_reward_model


def require_reward_model(cfg: Any) -> None:
    """Refuse a run whose reward model is not there.

    Workers on other machines may see other folders, so only runs on one machine are looked at.

    Args:
        cfg: checked configuration of task type `embodied`.

    Raises:
        SystemExit: says what is missing and how to make it.
    """
    if not uses_reward_model(cfg) or cfg.cluster.num_nodes > 1 or cfg.runner.only_eval:
        return
    try:
        find_reward_model(cfg.reward.model.model_path)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None


def launch_reward(cfg: Any, cluster: Cluster, placement: ComponentPlacement) -> WorkerGroup | None:
    """Launch the group that computes rewards; return None if the run needs none.

    Args:
        cfg: checked configuration.
        cluster: where.
        placement: of its components.
    """
    if not uses_reward_model(cfg) or cfg.runner.only_eval:
        return None
    return EmbodiedRewardWorker.create_group(cfg).launch(
        cluster, name=cfg.reward.group_name, placement_strategy=placement.get_strategy("reward")
    )


def reward_metrics(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the metrics of a rollout that was scored.

    Args:
        results: of each reward worker, what `EmbodiedRewardWorker.compute_rewards` returned.
    """
    sums = {name: sum(result[name] for result in results) for name in results[0]}
    steps = max(sums["steps"], 1.0)
    metrics = {
        "reward/model_mean": sums["probability"] / steps,
        "reward/mean": sums["reward"] / steps,
        "reward/found": sums["found"] / steps,
    }
    if "agreed" in sums:
        metrics["reward/solved"] = sums["solved"] / steps
        metrics["reward/agreement"] = sums["agreed"] / steps
        metrics["reward/false_positives"] = sums["wrongly_found"] / max(sums["found"], 1.0)
    return metrics
