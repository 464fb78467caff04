"""Actor, rollout, env and reward workers that tests can look into, and that can begin again."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from rlinf.workers.actor.imitation.sft_worker import FSDPVlaSftWorker
from rlinf.workers.env.acting_env_worker import ActingEnvWorker
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.reward.embodied_reward_worker import EmbodiedRewardWorker
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker
from tests.e2e_tests.embodied import sampler  # noqa: F401
from tests.e2e_tests.runners import BeginsAgain


class Observed(BeginsAgain):
    """Writes down when a device is taken, used and given up."""

    def note(self, event: str) -> None:
        self.__dict__.setdefault("events", []).append((time.monotonic(), self._rank, event))

    def read(self) -> list[tuple[float, int, str]]:
        return getattr(self, "events", [])


class Actor(Observed, FSDPVlaSftWorker):
    def init_worker(self, *args: Any) -> None:
        super().init_worker(*args)
        engine, updates = self.engine, self.learner.updates
        onload, offload, run = engine.onload, engine.offload, updates.run
        engine.onload = lambda optimizer=True: (onload(optimizer), self.note("actor on"))
        engine.offload = lambda: (offload(), self.note("actor off"))
        updates.run = lambda task: (self.note("actor trains"), run(task))[1]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.engine.full_tensors()}

    def batch(self) -> dict[str, torch.Tensor]:
        batch = self._require_batch()
        return {"rewards": batch.rewards, "logprobs": batch.prev_logprobs, **batch.forward_inputs}


class ObservedPolicy(Observed):
    def _onload_policy(self) -> None:
        super()._onload_policy()
        self.note("rollout on")

    def _offload_policy(self) -> None:
        super()._offload_policy()
        self.note("rollout off")

    def init_policy(self, *args: Any) -> None:
        super().init_policy(*args)
        act = self._acting.act
        self._acting.act = lambda *args: (self.note("rollout acts"), act(*args))[1]


class Rollout(ObservedPolicy, MultiStepRolloutWorker):
    pass


class ObservedEnvs(Observed):
    """Sends, if told to, a NaN as observation of env 1 of rank 1 after some steps."""

    _left = -1

    def send_nan_after(self, steps: int) -> None:
        self._left = steps

    def _make(self, *args: Any) -> list[Any]:
        envs = super()._make(*args)
        for env in envs:
            env.onload = lambda: self.note("env on")
            env.offload = lambda: self.note("env off")
        return envs

    def _first_obs(self, stage: int, env: Any) -> dict[str, Any]:
        self.note("env plays")
        return super()._first_obs(stage, env)

    def _send_obs(self, stage: int, obs: Any, infos: Any, early: Any = None) -> None:
        if self._left == 0 and self._rank == 1:
            obs = {**obs, "states": obs["states"].clone()}
            obs["states"][1, 7] = math.nan
        self._left -= 1
        super()._send_obs(stage, obs, infos, early)


class Env(ObservedEnvs, EnvWorker):
    pass


class ActingEnv(ObservedEnvs, ObservedPolicy, ActingEnvWorker):
    pass


class Reward(Observed, EmbodiedRewardWorker):
    pass
