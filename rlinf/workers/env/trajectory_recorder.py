"""Records what happens to the envs of one stage in a rollout, for the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied import EnvTrajectory
from rlinf.workers.env.supervision import Decision


class TrajectoryRecorder:
    """One stage of a rollout while it grows.

    Args:
        begins: whether the first chunk begins an episode in every env.

    Attributes:
        env_steps: actions carried out so far.
    """

    def __init__(self, begins: bool) -> None:
        self._begins: bool | Tensor = begins
        self._chunks: list[dict[str, Tensor]] = []
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

    def finish(self) -> EnvTrajectory:
        """Return the whole stage."""
        return EnvTrajectory(
            **{name: torch.stack([c[name] for c in self._chunks]) for name in self._chunks[0]}
        )
