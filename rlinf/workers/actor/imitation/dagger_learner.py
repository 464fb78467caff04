"""DAgger: a policy is cloned from an expert's labels of what the policy itself observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.dagger import mixture_beta
from rlinf.data.demonstrations.sampling import sample_noise
from rlinf.data.embodied import EmbodiedBatch, RolloutNeeds
from rlinf.data.replay import ReplayBatch
from rlinf.data.replay.build import ReplayPlace, build_replay
from rlinf.models.embodiment.base_policy import ForwardType
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.imitation.cloning_task import CloningTask
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.off_policy.rollout_rows import RolloutRows
from rlinf.workers.actor.registry import register_learner
from rlinf.workers.actor.rollout_learner import RolloutLearner
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape

_REPLAY = "replay"


class DrawnLabels:
    """Labelled steps that were drawn from all rollouts, as `CloningTask` takes them.

    Args:
        batch: what was drawn, on the device.
    """

    def __init__(self, batch: ReplayBatch) -> None:
        self._batch = batch

    def valid(self, rows: Tensor) -> Tensor:
        """Return which actions count, bool `[n, C]`."""
        return self._batch.valid[rows]

    def take(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return observations `[n, ...]` each, and labels `[n, C, A]`."""
        obs = {name: value[rows] for name, value in self._batch.obs.items()}
        return obs, self._batch.actions[rows]


@register_learner("embodied_dagger")
class DAggerLearner(RolloutLearner):
    """Learns from the labels of all rollouts so far.

    Labels take the place of actions in a replay buffer; steps without one are not drawn.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Attributes:
        replay: the steps of this rank; None in a run that only evaluates.
        labels: stored so far, over all ranks.

    Raises:
        ValueError: the policy cannot be trained on given actions.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        if ForwardType.SFT not in getattr(model, "forward_types", ()):
            raise ValueError(
                f"{type(model).__name__} cannot be trained on given actions: it has no forward "
                "type 'sft'; use mlp_policy or cnn_policy, or give it a method sft_forward"
            )
        engine = self.policy_engine(model)
        shape = UpdateShape(global_batch=cfg.actor.global_batch_size, shuffles=False)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, place.seed, shape))
        self._rows = RolloutRows(cfg, engine, place.warn)
        self._dagger, self._loss = cfg.algorithm.dagger, cfg.algorithm.bc_loss
        self._steps, self._micro_batch = cfg.algorithm.update_epoch, cfg.actor.micro_batch_size
        self._share = cfg.actor.global_batch_size // place.world_size
        self.labels = self._gradient_steps = 0
        self.replay = None
        if not cfg.runner.only_eval:
            self.replay = build_replay(
                cfg.algorithm.replay_buffer,
                ReplayPlace(
                    place.folder,
                    seed=named_seed(place.seed, "actor", "replay"),
                    gamma=cfg.algorithm.gamma,
                    discount_per=cfg.algorithm.discount_per,
                    rank=place.rank,
                    world_size=place.world_size,
                ),
            )
        self._added: EmbodiedBatch | None = None

    @classmethod
    def rollout_needs(cls, cfg: Any) -> RolloutNeeds:
        """See `Learner.rollout_needs`: the policy acts as in evaluations."""
        return RolloutNeeds(final_observations=True, samples=False)

    # -- rollouts -------------------------------------------------------------------------------

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Add the labels of a rollout to those of all others; return metrics over all ranks.

        Args:
            batch: this rank's share.
            env_ids: numbers of its envs in the whole run.
        """
        labels = batch.actions if batch.labels is None else batch.labels
        trajectories, metrics = self._rows.of(batch, env_ids)
        labelled = batch.valid.any(-1)
        if self._dagger.only_save_expert:
            labelled = labelled & (batch.intervened | ~batch.valid).all(-1)
        width, count = len(env_ids) // len(trajectories), 0
        kept = []
        for epoch, trajectory in enumerate(trajectories):
            columns = slice(epoch * width, (epoch + 1) * width)
            usable = trajectory.usable & labelled[:, columns]
            kept.append(replace(trajectory, actions=labels[:, columns], usable=usable))
            count += int(usable.sum())
        self.replay.add_trajectories(kept)
        self._added = batch
        self.labels += int(self.engine.all_reduce(torch.tensor([count])))
        return metrics

    # -- updates --------------------------------------------------------------------------------

    def update(self) -> dict[str, float]:
        """Make the gradient steps of one rollout; return metrics over all ranks."""
        batch, self._added = self._added, None
        if batch is None:
            raise RuntimeError("there is no rollout: call compute_advantages_and_returns first")
        engine, reduces = self.engine, self.place.world_size > 1
        engine.onload()
        engine.model.update_normalizer(
            batch.forward_inputs,
            mask=batch.valid.any(-1) & batch.finite,
            all_reduce=engine.all_reduce if reduces else None,
        )
        metrics = {"actor/updates": 0.0}
        if engine.agree(int(not self.replay.is_ready())) == 0:
            metrics = self._clone()
        own = self._dagger
        metrics["dagger/beta"] = mixture_beta(
            self.version, own.init_beta, own.beta_schedule, own.beta_decay, own.beta_min
        )
        self.version += 1
        self._gradient_steps += int(metrics["actor/updates"])
        metrics["dagger/labels"] = float(self.labels)
        metrics["gradient_updates"] = float(self._gradient_steps)
        stats = self.replay.get_stats()
        counts = torch.tensor(list(stats.values()), dtype=torch.float64)
        for name, total in zip(stats, engine.all_reduce(counts).tolist(), strict=True):
            metrics[f"replay_buffer/{name}"] = total
        metrics["nan_skipped"] = float(self._rows.nan_skipped + engine.skipped)
        return metrics

    def _clone(self) -> dict[str, float]:
        count = self._steps * self._share
        drawn = self.replay.sample(count).to(self.engine.device)
        if self.fingerprints is not None:
            self.fingerprints.batch({"indices": drawn.indices.view(self._steps, -1)})
        rows, width = torch.arange(count), self.engine.model.sft_noise_width
        seed = named_seed(self.place.seed, "actor", "sft_noise", self.place.rank)
        task = CloningTask(
            self.engine,
            DrawnLabels(drawn),
            rows,
            self._loss,
            self._micro_batch,
            sample_noise(seed, self._gradient_steps, count, width) if width else None,
        )
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, "no step of the rollouts has a label")
        return metrics

    def close(self) -> None:
        """See `Learner.close`: the working folder of the labels."""
        if self.replay is not None:
            self.replay.close()

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {
            "labels": self.labels,
            "gradient_steps": self._gradient_steps,
            "nan_skipped": self._rows.nan_skipped,
        }

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self.labels, self._gradient_steps = state["labels"], state["gradient_steps"]
        self._rows.nan_skipped = state["nan_skipped"]

    def snapshot_files(self, folder: Path) -> Callable[[], None]:
        """See `Learner.snapshot_files`: the labels."""
        return self.replay.snapshot(folder / _REPLAY)

    def load_files(self, folder: Path) -> list[str]:
        """See `Learner.load_files`."""
        return self.replay.load_checkpoint(folder / _REPLAY)
