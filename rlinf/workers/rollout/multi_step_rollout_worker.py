"""The rollout worker: acts with the policy for many steps and keeps what the learner needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlinf.data.embodied_messages import (
    ACTIONS,
    BEGINS,
    EPISODES,
    EVALUATION,
    NO_ACTIONS,
    OBSERVATIONS,
    OVER,
    Obs,
    merge_observations,
    select_rows,
)
from rlinf.scheduler import Worker
from rlinf.scheduler.worker.routing import CommMapper
from rlinf.utils.determinism import be_deterministic
from rlinf.utils.env_spec import EnvSpec, rollout_steps
from rlinf.workers.checkpointed import Checkpointed, Job
from rlinf.workers.rollout.episode_server import Clients
from rlinf.workers.rollout.policy_holder import PolicyHolder


class MultiStepRolloutWorker(PolicyHolder, Checkpointed, Worker):
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

    def init_worker(self, env_spec: EnvSpec) -> None:
        """Build the policy."""
        self._env_spec = env_spec
        self.init_policy(env_spec)

    @Worker.timer("generate")
    def generate(self, number: int = 0) -> None:
        """Act through one rollout and send its half of it to the actor group.

        Args:
            number: what the driver knows it by.
        """
        self._onload_policy()
        self._rollout_number = number
        cfg, acting = self.cfg.env.train, self._acting
        steps = rollout_steps(cfg, self._env_spec.train_steps)
        chunks = steps // self.cfg.actor.model.num_action_chunks
        env = self.cfg.env.group_name
        step = acting.steps
        acting.begin_rollout(chunks)
        for epoch in range(cfg.rollout_epoch):
            acting.begin_epoch()
            played = 0
            while played < chunks and not (played and self._is_cut()):
                for stage in range(self.stages):
                    message = self._recv_obs(env, stage)
                    with self.worker_timer("predict"):
                        actions = acting.act(stage, message, epoch, played, step + played)
                    self.send_to(env, None, actions, route_key=stage, tag=ACTIONS)
                played += 1
            # Whoever is cut leaves out the noise of what it does not play.
            step += chunks
            for stage in range(self.stages):
                message = self._recv_obs(env, stage)
                if played < chunks:
                    nothing = torch.zeros(len(actions), *NO_ACTIONS)
                    self.send_to(env, None, nothing, route_key=stage, tag=ACTIONS)
                with self.worker_timer("predict"):
                    trajectory = acting.finish(stage, message, played)
                self._send_trajectory(epoch, stage, trajectory)
        # Not before: a rollout that is played again has the noise of its first attempt.
        acting.steps = step
        self._offload_policy()

    def _recv_obs(self, env: str, stage: Any, ranks: list[int] | None = None) -> Obs:
        return self.recv_from(
            env,
            None,
            route_key=stage,
            tag=OBSERVATIONS,
            merge_fn=merge_observations,
            ranks=ranks,
        )

    @Worker.timer("evaluate")
    def evaluate(self) -> None:
        """Act without noise, until the env workers have no episode left."""
        self._onload_policy()
        env, total = self.cfg.env.group_name, self.cfg.env.eval.total_num_envs
        workers = self._world_size_of(env)
        shares = CommMapper.get_src_ranks(total, workers, self._world_size, self._rank)
        clients = Clients(shares, *self._env_ids(self.cfg.env.eval, 1))
        step = 0
        with self._acting.evaluating():
            while clients.ranks:
                message = self._recv_obs(env, EVALUATION, clients.ranks)
                rows = clients.drop(message[OVER])
                if clients.ranks:
                    obs = select_rows(message["obs"], rows)
                    left = {"obs": obs} | {key: message[key][rows] for key in (BEGINS, EPISODES)}
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
        self._offload_policy()

    def _snapshot(self, folder: Path) -> Job:
        return self._snapshot_policy(folder)

    def _restore(self, folder: Path) -> list[str]:
        return self._restore_policy(folder)
