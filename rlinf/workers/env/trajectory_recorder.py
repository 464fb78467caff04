"""Records what happens to the envs of one stage in a rollout, for the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied import EnvTrajectory, UnscoredTrajectory
from rlinf.data.embodied_messages import tensors_of
from rlinf.workers.env.supervision import Decision


class TrajectoryRecorder:
    """One stage of a rollout while it grows.

    Args:
        begins: whether the first chunk begins an episode in every env.
        keeps_success: for a trajectory that a reward model scores, whether envs say when a task is
            solved.

    Attributes:
        env_steps: actions carried out so far.
    """

    def __init__(self, begins: bool, keeps_success: bool = False) -> None:
        self._begins: bool | Tensor = begins
        self._chunks: list[dict[str, Tensor]] = []
        self._outcomes: list[dict[str, Tensor]] = []
        self._success: list[Tensor] = []
        self._keeps_success = keeps_success
        self.env_steps = 0

    def add(
        self,
        actions: Tensor,
        rewards: Tensor,
        terminations: Tensor,
        truncations: Tensor,
        infos: Sequence[Mapping[str, Any]],
        resets: bool,
        decision: Decision | None = None,
    ) -> None:
        """Add a chunk.

        Args:
            actions: what was chosen, `[B, C, A]`.
            rewards: `[B, C]`.
            terminations: `[B, C]`.
            truncations: `[B, C]`.
            infos: of each action; `intervene_action` `[B, A]` and `intervene_flag` `[B]` say what
                somebody else chose instead.
            resets: whether a new episode begins in the next chunk where one ended in this.
            decision: what an expert said; None if none was asked. Where the env reports that
                somebody else chose, that is the label.
        """
        valid = torch.stack([info["_valid"] for info in infos], 1)
        intervened = torch.zeros_like(valid)
        labels = None
        if decision is not None:
            intervened |= decision.by_expert[:, None]
            labels = decision.labels.clone()
        for column, info in enumerate(infos):
            if "intervene_flag" in info:
                flag = info["intervene_flag"]
                intervened[:, column] |= flag
                actions = actions.clone()
                actions[flag, column] = info["intervene_action"][flag].to(actions.dtype)
                if labels is not None:
                    labels[flag, column] = actions[flag, column]
        ended = (terminations | truncations).any(1)
        self._chunks.append(
            {
                "rewards": rewards,
                "terminations": terminations,
                "truncations": truncations,
                "valid": valid,
                "begins": torch.zeros_like(ended) | self._begins,
                "actions": actions,
                "intervened": intervened,
            }
        )
        if labels is not None:
            self._chunks[-1]["labels"] = labels
        self._begins = ended if resets else False
        self.env_steps += int(valid.sum())

    def add_outcome(self, obs: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        """Add what a chunk led to, for a reward model.

        Args:
            obs: the last observations that it returned; the first ones of new episodes, where old
                ones ended and were reset.
            infos: of its last action.
        """
        outcome = tensors_of(obs)
        if "final_observation" in infos:
            ended, final = infos["_final_observation"], infos["final_observation"]
            outcome = {
                name: torch.where(ended.view(-1, *[1] * (value.dim() - 1)), final[name], value)
                for name, value in outcome.items()
            }
        self._outcomes.append(outcome)
        self._success.append(infos["success"])

    def finish(self) -> EnvTrajectory:
        """Return the whole stage; with observations, if any were added for a reward model."""
        content = _stacked(self._chunks)
        if not self._outcomes:
            return EnvTrajectory(**content)
        success = torch.stack(self._success) if self._keeps_success else None
        return UnscoredTrajectory(**content, outcomes=_stacked(self._outcomes), success=success)


def _stacked(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
