"""Records what happens to the envs of one stage in a rollout, for the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlinf.data.embodied import EnvTrajectory, UnscoredTrajectory
from rlinf.data.embodied_messages import tensors_of
from rlinf.workers.env.supervision import Decision


class TrajectoryRecorder:
    """One stage of a rollout while it grows.

    A step only keeps what it is given; all that follows from it is computed at the end, for all
    steps at once.

    Args:
        begins: whether the first chunk begins an episode in every env.
        keeps_success: for a trajectory that a reward model scores, whether envs say when a task is
            solved.

    Attributes:
        env_steps: actions carried out; known when the stage is finished.
    """

    def __init__(self, begins: bool, keeps_success: bool = False) -> None:
        self._begins = begins
        self._chunks: list[_Chunk] = []
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
        """Add a chunk; nobody writes into its tensors any more.

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
        valid = [info["_valid"] for info in infos]
        instead = [
            (column, info["intervene_flag"], info["intervene_action"])
            for column, info in enumerate(infos)
            if "intervene_flag" in info
        ]
        self._chunks.append(
            _Chunk(actions, rewards, terminations, truncations, valid, resets, decision, instead)
        )

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
        chunks = self._chunks
        valid = torch.stack([column for chunk in chunks for column in chunk.valid])
        valid = valid.unflatten(0, (len(chunks), -1)).transpose(1, 2).contiguous()
        terminations = torch.stack([chunk.terminations for chunk in chunks])
        truncations = torch.stack([chunk.truncations for chunk in chunks])
        ended = (terminations | truncations).any(-1)
        begins = torch.zeros_like(ended)
        begins[0] = self._begins
        resets = torch.tensor([chunk.resets for chunk in chunks], dtype=torch.bool)[:, None]
        begins[1:] = (ended & resets)[:-1]
        kind, scored = EnvTrajectory, {}
        if self._outcomes:
            kind, scored = UnscoredTrajectory, self._for_reward_model()
        whole = kind(
            rewards=torch.stack([chunk.rewards for chunk in chunks]),
            terminations=terminations,
            truncations=truncations,
            valid=valid,
            begins=begins,
            actions=torch.stack([chunk.actions for chunk in chunks]),
            intervened=torch.zeros_like(valid),
            **scored,
        )
        if chunks[0].decision is not None:
            whole.labels = torch.stack([chunk.decision.labels for chunk in chunks])
        for step, chunk in enumerate(chunks):
            _intervene(whole, step, chunk)
        self.env_steps = int(valid.sum())
        return whole

    def _for_reward_model(self) -> dict[str, Any]:
        """Return what chunks led to, `[T, B, ...]` each, and whether that solved the task."""
        names = self._outcomes[0]
        return {
            "outcomes": {name: torch.stack([o[name] for o in self._outcomes]) for name in names},
            "success": torch.stack(self._success) if self._keeps_success else None,
        }


class _Chunk(NamedTuple):
    """A chunk as it was added.

    Attributes:
        valid: for each action, whether it was carried out, bool `[B]`.
        instead: of each action in which the env reports it, its column, where somebody else chose,
            bool `[B]`, and what, `[B, A]`.
    """

    actions: Tensor
    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    valid: list[Tensor]
    resets: bool
    decision: Decision | None
    instead: list[tuple[int, Tensor, Tensor]]


def _intervene(whole: EnvTrajectory, step: int, chunk: _Chunk) -> None:
    """Enter what somebody else than the policy chose in a chunk."""
    if chunk.decision is not None:
        whole.intervened[step] |= chunk.decision.by_expert[:, None]
    for column, flag, actions in chunk.instead:
        whole.intervened[step, :, column] |= flag
        whole.actions[step, flag, column] = actions[flag].to(whole.actions.dtype)
        if whole.labels is not None:
            whole.labels[step, flag, column] = whole.actions[step, flag, column]
