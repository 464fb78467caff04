"""An expert beside the policy: it labels what envs observe, and sometimes acts instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.algorithms.dagger import mixture_beta
from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.experts import Expert
from rlinf.envs.gates import make_gate
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.utils.determinism import named_seed


@dataclass(frozen=True)
class Decision:
    """What is done in one step.

    Attributes:
        actions: what to carry out, `[B, 1, A]`.
        labels: what the expert would do, `[B, 1, A]`.
        by_expert: where that is carried out, bool `[B]`.
    """

    actions: Tensor
    labels: Tensor
    by_expert: Tensor


class Supervision:
    """The expert of the envs of one stage.

    Who acts is a function of seed, env and step, so that it does not depend on how envs are spread
    over processes.

    Args:
        dagger: `algorithm.dagger`.
        expert: who is asked.
        action_spec: the actions that the env takes.
        env_ids: numbers, in the whole run, of the envs.
        total_envs: envs in the whole run.
        seed: of the run.
    """

    def __init__(
        self,
        dagger: Any,
        expert: Expert,
        action_spec: ActionSpec,
        env_ids: Sequence[int],
        total_envs: int,
        seed: int,
    ) -> None:
        self._cfg, self._spec, self._ids = dagger, action_spec, list(env_ids)
        self._expert, self._total = expert, total_envs
        self._gate = None
        if dagger.gate is not None:
            self._gate = make_gate(dagger.gate, dagger, action_spec, expert=self._expert)
        self._coins = EnvNoise(named_seed(seed, "env", "beta"), self._ids, 1)
        self._begins = np.ones(len(self._ids), bool)
        self._chosen = np.zeros(len(self._ids), bool)
        self._gated = np.zeros(len(self._ids), bool)
        self._episodes = [0] * len(self._ids)
        self._beta = 0.0

    def begin_rollout(self, number: int) -> None:
        """Get ready for a rollout.

        Args:
            number: of the rollout in the run, from 0.
        """
        own = self._cfg
        self._beta = mixture_beta(
            number, own.init_beta, own.beta_schedule, own.beta_decay, own.beta_min
        )

    def restart(self) -> None:
        """Take note that new episodes begin in all envs."""
        self._begins[:] = True

    def decide(self, obs: dict[str, Any], actions: Tensor, step: int) -> Decision:
        """Label observations, and choose who acts.

        Args:
            obs: of all envs.
            actions: of the policy, `[B, 1, A]`, in the units of the env.
            step: of the run, which chooses the draws.
        """
        self._begin_episodes()
        labels = self._labels(obs)
        coins = torch.special.ndtr(self._coins.at(step)[:, 0]).numpy() < self._beta
        if self._cfg.beta_unit == "episode":
            coins = np.where(self._begins, coins, self._chosen)
        self._chosen = coins
        by_expert = coins
        if self._gate is not None:
            own = actions[:, 0].numpy()
            self._gated &= ~self._begins
            self._gated = self._gate.takes_over(obs, own, labels, self._gated)
            by_expert = coins | self._gated
        given = torch.from_numpy(labels)[:, None].to(actions.dtype)
        flags = torch.from_numpy(by_expert.copy())
        return Decision(torch.where(flags[:, None, None], given, actions), given, flags)

    def note_ends(self, ended: Tensor, resets: bool) -> None:
        """Take note of the episodes that ended in a step.

        Args:
            ended: where, bool `[B]`.
            resets: whether new ones begin in the next step.
        """
        self._begins = ended.numpy().copy() if resets else np.zeros(len(self._ids), bool)

    def _begin_episodes(self) -> None:
        slots = np.flatnonzero(self._begins).tolist()
        if not slots:
            return
        numbers = [self._ids[slot] + self._total * self._episodes[slot] for slot in slots]
        self._expert.begin(slots, numbers)
        for slot in slots:
            self._episodes[slot] += 1

    def _labels(self, obs: dict[str, Any]) -> np.ndarray:
        """Return the expert's actions as the env carries them out, `[B, A]`."""
        spec = self._spec
        actions = np.asarray(self._expert.act(obs, range(len(self._ids))))
        if spec.choices is not None:
            actions = np.rint(actions)
        return np.clip(actions, spec.low, spec.high).astype(spec.dtype)

    # -- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return who acts in the episodes that run, plain data."""
        return {
            "begins": self._begins.tolist(),
            "chosen": self._chosen.tolist(),
            "gated": self._gated.tolist(),
            "episodes": list(self._episodes),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._begins = np.array(state["begins"])
        self._chosen = np.array(state["chosen"])
        self._gated = np.array(state["gated"])
        self._episodes = list(state["episodes"])

    def close(self) -> None:
        """Let the expert free what it holds."""
        self._expert.close()
