"""The actor of embodied policies: joins both trajectories of a rollout and learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from rlinf.config.acting import acting_group
from rlinf.config.scoring import env_trajectory_sender
from rlinf.data.embodied import EmbodiedBatch
from rlinf.data.embodied_messages import ENV_TRAJECTORY, POLICY_TRAJECTORY
from rlinf.data.env_share import env_ids
from rlinf.data.partial_rollouts import merge_filled
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.models import get_model
from rlinf.models.embodiment.base_policy import acts_with
from rlinf.scheduler import Worker
from rlinf.utils.env_spec import EnvSpec, rollout_steps
from rlinf.workers.actor.actor import Actor
from rlinf.workers.actor.held_policy import HeldPolicy
from rlinf.workers.actor.registry import learner_of
from rlinf.workers.agreement import Evidence, Finding


class EmbodiedFSDPActor(Actor):
    """Trains a policy on rollouts of envs."""

    _batch: EmbodiedBatch | None = None

    def init_worker(self, env_spec: EnvSpec, total_steps: int = 0) -> None:
        """Build the policy and its learner."""
        self._env_spec = env_spec
        torch.manual_seed(self.seed)
        kind = learner_of(self.cfg)
        if kind.offline and self.cfg.runner.only_eval:
            kind = HeldPolicy
        policy = get_model(
            self.cfg.actor.model, env_spec, torch.float32, deferred=kind.defers_weights
        )
        self._load_initial_weights(policy)
        learner = kind(self.cfg, policy, self._place(total_steps))
        self._adopt(learner, {"rollout": WeightSender(self, self.cfg, acting_group(self.cfg))})

    @Worker.timer("sync_weights")
    def sync_model_to_rollout(self) -> int:
        """Send this rank's part of the weights to rollout workers; return the number of bytes."""
        self.engine.onload(optimizer=False)
        with self.learner.acting_policy() as policy:
            return self._send("rollout", partial(_acting_shards, policy))

    # -- rollouts -------------------------------------------------------------------------------

    def recv_rollout_batch(self) -> int:
        """Receive this rank's share of a rollout; return the number of chunk steps in it."""
        cfg = self.cfg
        stages = range(cfg.rollout.pipeline_stage_num)
        parts = [(epoch, stage) for epoch in range(cfg.env.train.rollout_epoch) for stage in stages]
        steps = rollout_steps(cfg.env.train, self._env_spec.train_steps)
        # A process that was behind may have handed over fewer.
        merge = partial(merge_filled, steps=steps // cfg.actor.model.num_action_chunks)
        of_env, of_policy = [], []
        for part in parts:
            for group, tag, received in (
                (env_trajectory_sender(cfg), ENV_TRAJECTORY, of_env),
                (acting_group(cfg), POLICY_TRAJECTORY, of_policy),
            ):
                received.append(
                    self.recv_from(group, None, route_key=part, tag=tag, merge_fn=merge)
                )
        self._batch = EmbodiedBatch.join(of_env, of_policy)
        return self._batch.num_samples

    def _env_ids(self) -> list[int]:
        """Return the number, in the whole run, of the env of each column of a batch."""
        train, stages = self.cfg.env.train, self.cfg.rollout.pipeline_stage_num
        workers = self._world_size_of(self.cfg.env.group_name)
        of_epoch = [
            number
            for stage in range(stages)
            for number in env_ids(
                train.total_num_envs,
                env_workers=workers,
                stages=stages,
                stage=stage,
                ranks=self._world_size,
                rank=self._rank,
            )
        ]
        return of_epoch * train.rollout_epoch

    def _require_batch(self) -> EmbodiedBatch:
        if self._batch is None:
            raise RuntimeError("there is no rollout to learn from: call recv_rollout_batch first")
        return self._batch

    # -- agreement ------------------------------------------------------------------------------

    @Worker.timer("agreement")
    def agreement(self) -> tuple[dict[str, float], torch.dtype]:
        """Compare the rollout with what the policy makes of it; see `EmbodiedLearner`."""
        return self.learner.agreement(self._require_batch())

    def find_differences(self, evidence: list[Evidence]) -> list[Finding]:
        """Say what differs between this rank and the rollout workers."""
        return self.learner.find_differences(self._require_batch(), self._env_ids(), evidence)

    # -- learning -------------------------------------------------------------------------------

    @Worker.timer("advantages")
    def compute_advantages_and_returns(self) -> dict[str, float]:
        """Fill in advantages and returns; return metrics over all ranks."""
        return self.learner.prepare(self._require_batch(), self._env_ids())

    @Worker.timer("training")
    def run_training(self) -> dict[str, float]:
        """Update the policy on the rollout; return metrics over all ranks."""
        metrics = self.learner.update()
        self._batch = None
        self._offload()
        return metrics

    def on_shutdown(self) -> None:
        """Let the learner remove the files that it works with."""
        if hasattr(self, "learner"):
            self.learner.close()


def _acting_shards(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights and buffers that a policy acts with, as sharded as they are."""
    for name, tensor in policy.state_dict().items():
        if acts_with(policy, name):
            yield name, tensor.detach()
