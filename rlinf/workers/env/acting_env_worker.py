"""The env worker that acts: the policy is in the process of the envs, and no message is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlinf.data.embodied_messages import EPISODES, NO_ACTIONS, Obs, pack_observations
from rlinf.workers.checkpointed import Job
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.env.episode_player import EpisodePlayer, Played
from rlinf.workers.rollout.policy_holder import PolicyHolder


class ActingEnvWorker(PolicyHolder, EnvWorker):
    """Simulates and acts; takes the place of an `EnvWorker` and a `MultiStepRolloutWorker`.

    The numbers are those of a policy in a process of its own that acts for the same envs.
    """

    _observed: dict[int, Obs]
    _eval_steps = 0
    _ends_early = False

    # -- training rollouts ------------------------------------------------------------------------

    def _begin_rollout(self, chunks: int) -> None:
        self._onload_policy()
        self._observed = {}
        self._steps = chunks * self._chunk_len
        self._next_step = self._acting.steps
        self._acting.begin_rollout(chunks)

    def _begin_epoch(self) -> None:
        if self._acting.keeps_observations:
            for env in self._train:
                env.reserve(self._steps + 1)
        self._acting.begin_epoch()
        self._ends_early = False

    def _send_obs(self, stage: int, obs: Obs, infos: Any, early: Obs | None = None) -> None:
        self._observed[stage] = self._pack(stage, obs, infos, early)

    def _recv_actions(self, stage: int, epoch: int, chunk: int) -> torch.Tensor:
        if stage == 0 and chunk > 0:
            self._ends_early = self._is_cut()
        if self._ends_early:
            return torch.zeros(1, *NO_ACTIONS)
        with self.worker_timer("predict"):
            step = self._next_step + chunk
            return self._acting.act(stage, self._observed.pop(stage), epoch, chunk, step)

    def _end_epoch(self, epoch: int, chunks: int) -> None:
        self._next_step += chunks
        for stage in range(self.stages):
            with self.worker_timer("predict"):
                trajectory = self._acting.finish(stage, self._observed.pop(stage), chunks)
            self._send_trajectory(epoch, stage, trajectory)

    def _end_rollout(self) -> None:
        # Not before: a rollout that is played again has the noise of its first attempt.
        self._acting.steps = self._next_step
        self._offload_policy()

    # -- evaluation -------------------------------------------------------------------------------

    def _play(self, play: Callable[[EpisodePlayer], Played]) -> Played:
        self._onload_policy()
        self._eval_steps = 0
        with self._acting.evaluating():
            return super()._play(play)

    def _ask(self, obs: dict[str, Any]) -> torch.Tensor:
        (ids,) = self._env_ids(self.cfg.env.eval, 1)
        message = pack_observations(obs, begins=self._eval[0].begins)
        message[EPISODES] = self._episode_numbers()
        with self.worker_timer("predict"):
            actions = self._acting.evaluate(message, ids, self._eval_steps)
        self._eval_steps += 1
        return actions

    def _release_policy(self, env: Any) -> None:
        self._offload_policy()

    # -- restarts and checkpoints -----------------------------------------------------------------

    def policy_steps(self) -> int:
        """Return the chunk steps that the policy has made, which choose its noise."""
        return self._acting.steps

    def set_policy_steps(self, steps: int) -> None:
        """Go on as a policy that has made so many chunk steps: this process may be a new one."""
        self._acting.steps = steps

    def _snapshot(self, folder: Path) -> Job:
        write_envs, write_policy = super()._snapshot(folder), self._snapshot_policy(folder)

        def write() -> None:
            write_envs()
            write_policy()

        return write

    def _restore(self, folder: Path) -> list[str]:
        return super()._restore(folder) + self._restore_policy(folder)
