"""The rollout worker: acts with the policy for many steps and keeps what the learner needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlinf.data.embodied import split_trajectory
from rlinf.data.embodied_messages import (
    ACTIONS,
    EPISODES,
    EVALUATION,
    OBSERVATIONS,
    OVER,
    POLICY_TRAJECTORY,
    Obs,
    merge_observations,
    select_rows,
)
from rlinf.data.env_share import env_ids
from rlinf.hybrid_engines.fsdp.precision import usable_format
from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models import get_model
from rlinf.models.embodiment.base_policy import BasePolicy
from rlinf.models.settings import rollout_section
from rlinf.scheduler import Worker
from rlinf.scheduler.worker.routing import CommMapper
from rlinf.utils.checkpoint import load_tree, save_tree
from rlinf.utils.determinism import be_deterministic
from rlinf.utils.env_spec import EnvSpec, rollout_steps
from rlinf.workers.actor.registry import learner_of
from rlinf.workers.agreement import Evidence
from rlinf.workers.checkpointed import Checkpointed, Job
from rlinf.workers.rollout.episode_server import Clients
from rlinf.workers.rollout.rollout_policy import RolloutPolicy


class MultiStepRolloutWorker(Checkpointed, Worker):
    """Serves the env workers' requests for actions, stage by stage.

    What the learner needs to recompute a step stays here until the rollout ends and then goes
    straight to the actor; the env carries only actions.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        torch.set_num_threads(1)
        if cfg.runner.deterministic:
            be_deterministic(cfg.runner.seed, "rollout", self._rank)
        self.cfg = cfg
        self.stages = cfg.rollout.pipeline_stage_num
        self._device = torch.device(self.torch_device_type)

    def init_worker(self, env_spec: EnvSpec) -> None:
        """Build the policy."""
        cfg = self.cfg
        self._format = self._number_format()
        self._env_spec = env_spec
        policy = get_model(rollout_section(cfg), env_spec, self._format)
        stages = [] if cfg.env.train is None else self._env_ids(cfg.env.train, self.stages)
        self._acting = RolloutPolicy(
            policy.to(self._device).eval(),
            self._device,
            stages,
            seed=cfg.runner.seed if cfg.rollout.seed is None else cfg.rollout.seed,
            rank=self._rank,
            on_nan=cfg.runner.on_nan,
            warn=self.log_warning,
            compares=cfg.runner.agreement.interval >= 0,
            keep_final=learner_of(cfg).rollout_needs(cfg).final_observations,
        )
        self._receiver = WeightReceiver(self, cfg)
        self._offload()

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
        dtype, note = usable_format(name, self._device, key)
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

    def sync_model_from_actor(self) -> int:
        """Receive the actor's weights; return their version."""
        self._onload()
        self._acting.version = self._receiver.receive(self.policy)
        return self.version

    def _onload(self) -> None:
        """Bring the policy back to the device, if it was put away."""
        if self.cfg.rollout.enable_offload:
            with self.worker_timer("onload"):
                self.policy.to(self._device)

    def _offload(self) -> None:
        """Leave the device to others, if the config says so."""
        if self.cfg.rollout.enable_offload:
            with self.worker_timer("offload"):
                self.policy.to("cpu")
                if self._device.type != "cpu":
                    self.torch_platform.empty_cache()

    @Worker.timer("generate")
    def generate(self) -> None:
        """Act through one rollout and send its half of it to the actor group."""
        self._onload()
        cfg, acting = self.cfg.env.train, self._acting
        chunks = self._chunks(cfg, self._env_spec.train_steps)
        env, actor = self.cfg.env.group_name, self.cfg.actor.group_name
        step = acting.steps
        acting.begin_rollout(chunks)
        for epoch in range(cfg.rollout_epoch):
            acting.begin_epoch()
            for chunk in range(chunks):
                for stage in range(self.stages):
                    message = self._recv_obs(env, stage)
                    with self.worker_timer("predict"):
                        actions = acting.act(stage, message, epoch, chunk, step)
                    self.send_to(env, None, actions, route_key=stage, tag=ACTIONS)
                step += 1
            for stage in range(self.stages):
                message = self._recv_obs(env, stage)
                with self.worker_timer("predict"):
                    trajectory = acting.finish(stage, message, chunks)
                self.send_to(
                    actor,
                    None,
                    trajectory,
                    route_key=(epoch, stage),
                    tag=POLICY_TRAJECTORY,
                    batch_size=cfg.total_num_envs // self.stages,
                    split_fn=split_trajectory,
                )
        # Not before: a rollout that is played again has the noise of its first attempt.
        acting.steps = step
        self._offload()

    def _recv_obs(self, env: str, stage: Any, ranks: list[int] | None = None) -> Obs:
        return self.recv_from(
            env,
            None,
            route_key=stage,
            tag=OBSERVATIONS,
            merge_fn=merge_observations,
            ranks=ranks,
        )

    def _chunks(self, cfg: Any, own_limit: int | None) -> int:
        return rollout_steps(cfg, own_limit) // self.cfg.actor.model.num_action_chunks

    # -- evaluation -------------------------------------------------------------------------------

    @Worker.timer("evaluate")
    def evaluate(self) -> None:
        """Act without noise, until the env workers have no episode left."""
        self._onload()
        env, total = self.cfg.env.group_name, self.cfg.env.eval.total_num_envs
        workers = self._world_size_of(env)
        shares = CommMapper.get_src_ranks(total, workers, self._world_size, self._rank)
        clients = Clients(shares, *self._env_ids(self.cfg.env.eval, 1))
        # A policy that draws noise although it is evaluated must not change what is trained.
        noise, step = self._acting.generator.get_state(), 0
        while clients.ranks:
            message = self._recv_obs(env, EVALUATION, clients.ranks)
            rows = clients.drop(message[OVER])
            if clients.ranks:
                left = {"obs": select_rows(message["obs"], rows), EPISODES: message[EPISODES][rows]}
                self.send_to(
                    env,
                    None,
                    self._acting.evaluate(left, clients.env_ids, step),
                    route_key=EVALUATION,
                    tag=ACTIONS,
                    batch_size=total,
                    ranks=clients.ranks,
                )
            step += 1
        self._acting.generator.set_state(noise)
        self._offload()

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

    def _snapshot(self, folder: Path) -> Job:
        state = {
            "world_size": self._world_size,
            "steps": self._acting.steps,
            "generator": self._acting.generator.get_state(),
        }
        return lambda: save_tree(folder / "rollout" / f"rank_{self._rank}", state)

    def _restore(self, folder: Path) -> list[str]:
        """Return the weights are not among it: they come with the next sync."""
        own = folder / "rollout" / f"rank_{self._rank}"
        same = own.with_name(own.name + ".json").exists()
        state = load_tree(own if same else own.with_name("rank_0"))
        self._acting.steps = state["steps"]
        if state["world_size"] == self._world_size:
            self._acting.generator.set_state(state["generator"])
        elif self._acting.draws_own_noise:
            return [
                f"the noise of the policy, as there were {state['world_size']} rollout ranks and "
                f"now are {self._world_size}"
            ]
        return []
