"""The actor: joins both halves of a rollout, learns from it, and sends the weights on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rlinf.data.embodied import EmbodiedBatch, merge_trajectories
from rlinf.data.embodied_messages import ENV_TRAJECTORY, POLICY_TRAJECTORY
from rlinf.data.env_share import env_ids
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.initial_weights import load_initial_weights
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.models import get_model
from rlinf.scheduler import Worker
from rlinf.utils.checkpoint import save_tree
from rlinf.utils.determinism import be_deterministic
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.agreement import Evidence, Finding
from rlinf.workers.checkpointed import Checkpointed, Job, load_rank


class EmbodiedFSDPActor(Checkpointed, Worker):
    """Trains a policy on rollouts of envs."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "actor", self._rank)
        self.cfg = cfg
        self._device = torch.device(self.torch_device_type)
        self._batch: EmbodiedBatch | None = None

    def init_worker(self, env_spec: EnvSpec, total_steps: int = 0) -> None:
        """Builds the policy and its optimiser."""
        self._env_spec = env_spec
        seed = self.cfg.actor.seed
        seed = self.cfg.runner.seed if seed is None else seed
        torch.manual_seed(seed)
        policy = get_model(self.cfg.actor.model, env_spec, torch.float32)
        load_initial_weights(policy, self.cfg)
        self.learner = EmbodiedLearner(
            self.cfg,
            policy,
            self._device,
            seed=seed,
            rank=self._rank,
            world_size=self._world_size,
            total_steps=total_steps,
            warn=self.log_warning,
        )
        self._sender = WeightSender(self, self.cfg)
        self._tensors = EngineCheckpoint(self.engine)
        self._offload()

    @property
    def engine(self) -> TrainEngine:
        """The policy and its optimiser."""
        return self.learner.engine

    @property
    def version(self) -> int:
        """Version of the weights: updates made so far."""
        return self.learner.version

    # -- weights --------------------------------------------------------------------------------

    @Worker.timer("sync_weights")
    def sync_model_to_rollout(self) -> int:
        """Sends the weights to all rollout workers; returns the number of bytes."""
        self.engine.onload(optimizer=False)
        tensors = self.engine.full_tensors()
        size = 0
        if self._rank == 0:
            size = self._sender.send(tensors, self.version)
        else:
            for _ in tensors:
                pass
        self._offload()
        return size

    def _offload(self) -> None:
        """Leaves the device to others, if the config says so."""
        if self.cfg.actor.enable_offload:
            with self.worker_timer("offload"):
                self.engine.offload()

    # -- rollouts -------------------------------------------------------------------------------

    def recv_rollout_batch(self) -> int:
        """Receives this rank's share of a rollout; returns the number of chunk steps in it."""
        cfg = self.cfg
        stages = range(cfg.rollout.pipeline_stage_num)
        parts = [(epoch, stage) for epoch in range(cfg.env.train.rollout_epoch) for stage in stages]
        of_env, of_policy = [], []
        for part in parts:
            for group, tag, received in (
                (cfg.env.group_name, ENV_TRAJECTORY, of_env),
                (cfg.rollout.group_name, POLICY_TRAJECTORY, of_policy),
            ):
                received.append(
                    self.recv_from(
                        group, None, route_key=part, tag=tag, merge_fn=merge_trajectories
                    )
                )
        self._batch = EmbodiedBatch.join(of_env, of_policy)
        return self._batch.num_samples

    def _env_ids(self) -> list[int]:
        """Number, in the whole run, of the env of each column of a batch."""
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

    # -- agreement and fingerprints -------------------------------------------------------------

    @Worker.timer("agreement")
    def agreement(self) -> tuple[dict[str, float], torch.dtype]:
        """Compares the rollout with what the policy makes of it; see `EmbodiedLearner`."""
        return self.learner.agreement(self._require_batch())

    def find_differences(self, evidence: list[Evidence]) -> list[Finding]:
        """Says what differs between this rank and the rollout workers."""
        return self.learner.find_differences(self._require_batch(), self._env_ids(), evidence)

    def fingerprints(self) -> dict[str, Any]:
        """Hashes of what the last update did; see `rlinf.utils.fingerprints`."""
        self.engine.onload(optimizer=False)
        record = self.learner.fingerprints.take()
        self._offload()
        return record

    def fingerprint_facts(self) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """What hashes may depend on besides the config, and the names of the tensors."""
        name = torch.cuda.get_device_name() if self._device.type == "cuda" else "cpu"
        facts = {
            "device": name,
            "actor_ranks": self._world_size,
            "threads": torch.get_num_threads(),
        }
        return facts, self.learner.fingerprints.names()

    # -- learning -------------------------------------------------------------------------------

    @Worker.timer("advantages")
    def compute_advantages_and_returns(self) -> dict[str, float]:
        """Fills in advantages and returns; returns metrics over all ranks."""
        return self.learner.prepare(self._require_batch(), self._env_ids())

    @Worker.timer("training")
    def run_training(self) -> dict[str, float]:
        """Updates the policy on the rollout; returns metrics over all ranks."""
        metrics = self.learner.update()
        self._batch = None
        self._offload()
        return metrics

    # -- checkpoints ----------------------------------------------------------------------------

    def _snapshot(self, folder: Path) -> Job:
        tensors, state = self._tensors.snapshot(), self.learner.state()

        def write() -> None:
            self._tensors.write(tensors, folder / "actor" / "tensors")
            save_tree(folder / "actor" / f"rank_{self._rank}", state)
            if self._rank == 0:
                # Whoever uses the policy without the env has to know its sizes and ranges.
                save_tree(folder / "actor" / "env_spec", asdict(self._env_spec))

        return write

    def load_policy(self, folder: str) -> None:
        """Takes the policy of a checkpoint, and nothing else of it."""
        self._tensors.read(Path(folder) / "actor" / "tensors", only_model=True)

    def _restore(self, folder: Path) -> list[str]:
        self._tensors.read(folder / "actor" / "tensors")
        return self.learner.load_state(load_rank(folder / "actor", self._rank))
