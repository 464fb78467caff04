"""What a policy remembers of the episodes that it plays, from one chunk of actions to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.models.embodiment.base_policy import BasePolicy


class PolicyMemory:
    """Memory of a policy for each env of a rollout; nothing for a policy that has none.

    Args:
        policy: Whose.
        counts: Envs of each stage.
        device: Of the policy.
    """

    def __init__(self, policy: BasePolicy, counts: Sequence[int], device: torch.device) -> None:
        self._width, self._device = policy.memory_width, device
        self._memory = [self._nothing(count) for count in counts]
        self._begins = [torch.ones(count, dtype=torch.bool, device=device) for count in counts]
        self._of_episodes: dict[int, Tensor] = {}

    def _nothing(self, count: int) -> Tensor:
        return torch.zeros(count, self._width, device=self._device)

    # -- rollouts -------------------------------------------------------------------------------

    def begin(self, stage: int, begins: Tensor) -> None:
        """Say in which envs of a stage the next observation is the first of an episode.

        Args:
            stage: Of which.
            begins: bool `[B]`.
        """
        if self._width:
            self._begins[stage] = begins.to(self._device)

    def arguments(self, stage: int) -> dict[str, Tensor]:
        """Return what the policy has to be told to act in a stage."""
        if not self._width:
            return {}
        return {"memory": self._memory[stage], "begins": self._begins[stage]}

    def at_ends(self, stage: int, rows: Tensor) -> dict[str, Tensor]:
        """Return what the policy has to be told of episodes that have just ended.

        Args:
            stage: In which.
            rows: Of their envs, int64 `[m]`.
        """
        if not self._width:
            return {}
        rows = rows.to(self._device)
        begins = torch.zeros(len(rows), dtype=torch.bool, device=self._device)
        return {"memory": self._memory[stage][rows], "begins": begins}

    def keep(self, stage: int, result: dict[str, Any]) -> None:
        """Keep what the policy remembers after it has acted.

        Args:
            stage: In which.
            result: See `BasePolicy.predict_action_batch`.
        """
        if self._width:
            self._memory[stage] = result["memory"]
            self._begins[stage] = torch.zeros_like(self._begins[stage])

    # -- evaluations ----------------------------------------------------------------------------

    def forget_episodes(self) -> None:
        """Forget the episodes of evaluations."""
        self._of_episodes = {}

    def recall(self, episodes: Sequence[int], begins: Tensor | None) -> dict[str, Tensor]:
        """Return what the policy has to be told to act in episodes of an evaluation, on the host.

        Args:
            episodes: Their numbers.
            begins: Which of them begin, bool `[B]`; None if the policy has no memory.
        """
        if not self._width:
            return {}
        nothing = torch.zeros(self._width)
        known = [self._of_episodes.get(number, nothing) for number in episodes]
        return {"memory": torch.stack(known), "begins": begins}

    def note(self, episodes: Sequence[int], memory: Tensor | None = None) -> None:
        """Keep what the policy remembers of episodes of an evaluation.

        Args:
            episodes: Their numbers, of all that run; others are forgotten.
            memory: `[B, M]`, on the host; None if the policy has none.
        """
        if memory is not None:
            self._of_episodes = dict(zip(episodes, memory, strict=True))

    # -- checkpoints ----------------------------------------------------------------------------

    def get_state(self) -> list[Tensor]:
        """Return the memory of each stage, on the host; empty without."""
        return [memory.cpu() for memory in self._memory] if self._width else []

    def set_state(self, state: Sequence[Tensor]) -> bool:
        """Go on from what `get_state` returned; return whether it is of the same envs."""
        shapes = [memory.shape for memory in self._memory] if self._width else []
        if [memory.shape for memory in state] != shapes:
            return False
        self._memory = [memory.to(self._device) for memory in state] or self._memory
        return True
