"""What every worker that acts has: a policy, its weights, and what is saved of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlinf.config.acting import eval_batch_size, policy_age
from rlinf.data.embodied import PolicyTrajectory, RolloutNeeds, split_trajectory
from rlinf.data.embodied_messages import POLICY_TRAJECTORY
from rlinf.data.env_share import env_ids
from rlinf.hybrid_engines.fsdp.precision import usable_format
from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models import get_model
from rlinf.models.embodiment.base_policy import BasePolicy
from rlinf.models.settings import rollout_section
from rlinf.utils.checkpoint import save_tree
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.registry import learner_of
from rlinf.workers.agreement import Evidence
from rlinf.workers.checkpointed import Job, load_rank
from rlinf.workers.rollout.rollout_policy import RolloutPolicy
from rlinf.workers.rollout.staged_weights import StagedWeights


class PolicyHolder:
    """Mixin of workers that act, in processes of their own or in those of the envs.

    A worker has the attributes `cfg` and `stages`, and calls `init_policy` before anything else.
    """

    cfg: Any
    stages: int
    _acting: RolloutPolicy | None = None
    _rollout_number = 0

    def _is_cut(self) -> bool:
        """Return whether the rollout ends here, before all of its chunks are played."""
        return False

    def init_policy(self, env_spec: EnvSpec) -> None:
        """Build the policy, unless it is there.

        Args:
            env_spec: what the policy has to know of the envs.
        """
        if self._acting is not None:
            return
        cfg = self.cfg
        self._policy_device = torch.device(self.torch_device_type)
        self._format = self._number_format()
        policy = get_model(rollout_section(cfg), env_spec, self._format)
        policy = policy.to(self._policy_device).eval()
        self._staged = StagedWeights(policy) if policy_age(cfg) else None
        stages = [] if cfg.env.train is None else self._env_ids(cfg.env.train, self.stages)
        needs = learner_of(cfg).rollout_needs(cfg)
        self._acting = RolloutPolicy(
            policy,
            self._policy_device,
            stages,
            seed=cfg.runner.seed if cfg.rollout.seed is None else cfg.rollout.seed,
            rank=self._rank,
            on_nan=cfg.runner.on_nan,
            warn=self.log_warning,
            compares=cfg.runner.agreement.interval >= 0,
            keep_final=needs.final_observations,
            random_chunks=self._random_chunks(needs),
            samples=needs.samples,
            newer=None if self._staged is None else self._staged.take,
            eval_batch=eval_batch_size(
                cfg, self._world_size, on_cpu=self._policy_device.type == "cpu"
            ),
        )
        self._receiver = WeightReceiver(self, cfg)
        self._offload_policy()

    def _random_chunks(self, needs: RolloutNeeds) -> int:
        train = self.cfg.env.train
        chunk = self.cfg.actor.model.num_action_chunks
        return 0 if train is None else needs.random_chunks(train.total_num_envs, chunk)

    @property
    def policy(self) -> BasePolicy:
        """The policy."""
        return self._acting.policy

    @property
    def version(self) -> int:
        """Version of the policy's weights; -1 if none have arrived."""
        return self._acting.version

    def _number_format(self) -> torch.dtype:
        """That of the policy's weights."""
        own = self.cfg.rollout.model.precision
        key = "actor.model.precision" if own is None else "rollout.model.precision"
        name = self.cfg.actor.model.precision if own is None else own
        dtype, note = usable_format(name, self._policy_device, key)
        if note and self._rank == 0:
            self.log_warning(note)
        return dtype

    def _env_ids(self, cfg: Any, stages: int) -> list[list[int]]:
        """Return the numbers, in the whole run, of the envs that this rank serves, by stage."""
        return [
            env_ids(
                cfg.total_num_envs,
                env_workers=self._world_size_of(self.cfg.env.group_name),
                stages=stages,
                stage=stage,
                ranks=self._world_size,
                rank=self._rank,
            )
            for stage in range(stages)
        ]

    def _send_trajectory(self, epoch: int, stage: int, trajectory: PolicyTrajectory) -> None:
        """Send the policy's half of a stage of a rollout to the actor group."""
        self.send_to(
            self.cfg.actor.group_name,
            None,
            trajectory,
            route_key=(epoch, stage),
            tag=POLICY_TRAJECTORY,
            batch_size=self.cfg.env.train.total_num_envs // self.stages,
            split_fn=split_trajectory,
        )

    # -- weights --------------------------------------------------------------------------------

    def sync_model_from_actor(self) -> int:
        """Receive the actor's weights; return their version."""
        self._onload_policy()
        self._acting.version = self._receiver.receive(self.policy)
        return self.version

    def _onload_policy(self) -> None:
        """Bring the policy back to the device, if it was put away."""
        if self.cfg.rollout.enable_offload:
            with self.worker_timer("onload"):
                self.policy.to(self._policy_device)

    def _offload_policy(self) -> None:
        """Leave the device to others, if the config says so."""
        if self.cfg.rollout.enable_offload:
            with self.worker_timer("offload"):
                self.policy.to("cpu")
                if self._policy_device.type != "cpu":
                    self.torch_platform.empty_cache()

    def keep_weights(self) -> None:
        """Remember the weights, until `restore_weights`."""
        tensors = self.policy.state_dict()
        kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._kept = self.version, kept

    def restore_weights(self) -> None:
        """Go on with the weights of `keep_weights`."""
        self._acting.version, kept = self._kept
        self.policy.load_state_dict(kept)
        self._receiver.forget()
        del self._kept

    # -- agreement with the actor ---------------------------------------------------------------

    def number_format(self) -> torch.dtype:
        """Return the format that the policy is meant to compute in."""
        return self._format

    def evidence(self) -> Evidence:
        """Return what the policy acted with in the last rollout, as checksums."""
        name = f"{self.group_name}:{self._rank}"
        return Evidence.of(name, self.version, self.policy, self._acting.seen.table())

    # -- checkpoints ----------------------------------------------------------------------------

    def _snapshot_policy(self, folder: Path) -> Job:
        state = {
            "world_size": self._world_size,
            "steps": self._acting.steps,
            "generator": self._acting.generator.get_state(),
            "memory": self._acting.memory.get_state(),
        }
        return lambda: save_tree(folder / "rollout" / f"rank_{self._rank}", state)

    def _restore_policy(self, folder: Path) -> list[str]:
        """Go on with noise and memory; the weights come with the next sync."""
        state = load_rank(folder / "rollout", self._rank)
        acting, saved = self._acting, state["world_size"]
        acting.steps = state["steps"]
        why = f"as there were {saved} rollout ranks and now are {self._world_size}"
        notes = []
        if saved == self._world_size:
            acting.generator.set_state(state["generator"])
        elif acting.draws_own_noise:
            notes.append(f"the noise of the policy, {why}")
        memory = state.get("memory", [])
        if memory and not (saved == self._world_size and acting.memory.set_state(memory)):
            notes.append("what the policy remembers, as other processes have its envs now")
        return notes
