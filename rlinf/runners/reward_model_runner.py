"""The loop that trains a reward model: the actor learns from data and is judged by others."""

from __future__ import annotations

from typing import Any

from rlinf.runners.data_steps import DataSteps
from rlinf.runners.farewell import places
from rlinf.scheduler import WorkerGroup
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.runs.folders import shown

_BEST_METRICS = ("eval/auc", "eval/accuracy")
"""What ranks checkpoints, the first that is known."""


class RewardModelRunner(DataSteps):
    """Drives an actor through datasets of episodes with and without success.

    Args:
        cfg: checked configuration.
        actor: group of `RewardModelActor`.
    """

    def __init__(self, cfg: Any, actor: WorkerGroup):
        super().__init__(cfg, [actor], _BEST_METRICS)
        self.actor = actor
        self.begin_counting()

    def build_workers(self) -> None:
        """Build the model, and read the data."""
        self.actor.init_worker(self.optimiser_steps).wait()

    def load_policy(self, checkpoint: Checkpoint) -> None:
        """Take the model, and nothing else."""
        self.actor.load_policy(str(checkpoint.path)).wait()

    def evaluate(self) -> dict[str, float]:
        """Judge the model by the episodes that it was not trained on; return metrics."""
        found = self.actor.evaluate().wait()[0]
        return {f"eval/{name}": value for name, value in found.items()}

    def farewell(self, final: dict[str, float]) -> None:
        """Accuracy, where everything is, and what to do with the model."""
        samples, episodes = final["eval/samples"], final["eval/episodes"]
        print(
            f"of {samples:,.0f} observations of {episodes:.0f} episodes that were held out, "
            f"{final['eval/accuracy']:.1%} are told right (AUC {final['eval/auc']:.3f}, precision "
            f"{final['eval/precision']:.1%}, recall {final['eval/recall']:.1%})"
        )
        if self.cfg.runner.only_eval:
            print(f"everything is in {shown(self.folder)}")
            return
        print(places(self.cfg, self.folder))
        print(
            "next: learn from its rewards: rlinf train metaworld_ppo_reward_model_mlp "
            f"reward.model.model_path={shown(self.folder)}"
        )
