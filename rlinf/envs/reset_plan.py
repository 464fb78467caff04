"""Decides with which reset state and which seed every slot begins every episode.

Nothing is drawn from a running generator: what a slot gets is a function of the seed of the config,
of the slot's place among *all* slots of the run, and of how many episodes it has begun. Hence

- the same seed gives the same episodes however the slots are spread over processes and pipeline
  stages, as long as every process has the same number of them;
- what one slot does never changes what another one gets;
- the plan's state is a few counters.

Seeds of training episodes are even and those of evaluations odd (`rlinf.envs.fixed_episodes`), so
that no evaluation begins as training does where the seed decides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.envs.options import VectorEnvOptions
from rlinf.envs.starts import Start, derive
from rlinf.envs.task_draw import TaskDraw


class ResetPlan:
    """Reset states and seeds of the slots of one vector env.

    With `n` the number of episodes that a slot has begun (with fixed reset ids: the number of calls
    of `redraw`), group `g` among all groups of the run gets

        seed = hash(cfg.seed, g, n)              if there is no list of reset states
        id = hash(cfg.seed, g, n) mod their number, seed = hash(cfg.seed, id)     if there is one
        id = g + n * (number of groups)          ordered; nothing once the ids are used up

    so members of a group begin their n-th episode in the same state. With several tasks a
    `TaskDraw` takes the place of the first two lines.
    """

    def __init__(
        self,
        options: VectorEnvOptions,
        num_envs: int,
        seed_offset: int,
        total_num_processes: int,
        num_reset_states: int | None,
    ) -> None:
        """Work out which groups of the run live here.

        Args:
            options: Of the env.
            num_envs: Slots here; the same in every process.
            seed_offset: Index of this process (and stage) among all.
            total_num_processes: Processes times stages.
            num_reset_states: Reset states that the env has; None when a seed is all there is.

        Raises:
            ValueError: The numbers do not fit together.
        """
        group = options.group_size
        if num_envs % group:
            raise ValueError(
                f"{num_envs} envs per process cannot be divided by group_size {group}: "
                f"{num_envs} / {group} = {num_envs / group:.4g} groups"
            )
        if not 0 <= seed_offset < total_num_processes:
            raise ValueError(
                f"seed_offset {seed_offset} must be from 0 to {total_num_processes - 1}, as there "
                f"are {total_num_processes} processes"
            )
        if options.ordered_reset_ids and num_reset_states is None:
            raise ValueError(
                f"use_ordered_reset_state_ids needs a known number of reset states, and "
                f"{options.env_type} has no end of them: set num_reset_states, or turn it off"
            )
        wanted = options.specific_reset_id
        if wanted is not None and num_reset_states is not None and wanted >= num_reset_states:
            raise ValueError(
                f"specific_reset_id {wanted} is too large: {options.env_type} has "
                f"{num_reset_states} reset states, from 0 to {num_reset_states - 1}"
            )
        self.options = options
        self.num_reset_states = num_reset_states
        self._first_slot = seed_offset * num_envs
        self._num_groups = num_envs * total_num_processes // group
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        self._redraws = 0
        self._task_draw: TaskDraw | None = None

    @property
    def num_groups(self) -> int:
        """Groups of the whole run."""
        return self._num_groups

    def draw_tasks(self, task_draw: TaskDraw | None) -> None:
        """Leave the choice between tasks to a draw, where ids are not given; None is one task."""
        self._task_draw = task_draw

    @property
    def rounds(self) -> int:
        """Resets after which ordered ids are used up in every process; 1 when not ordered."""
        if not self.options.ordered_reset_ids:
            return 1
        return -(-self.num_reset_states // self._num_groups)

    def redraw(self) -> None:
        """Draw other fixed reset states; for the others there is nothing to do."""
        self._redraws += 1

    def begin_pass(self, slots: Sequence[int]) -> None:
        """Prepare an explicit reset of the slots: an ordered pass that ended starts again.

        With auto-reset a call of `reset` always starts the pass; without it, each is a round of
        the pass, and the round after the last one is the first.
        """
        if not self.options.ordered_reset_ids:
            return
        for slot in slots:
            if self.options.auto_reset or self._episodes[slot] >= self.rounds:
                self._episodes[slot] = 0

    def next(self, slot: int) -> Start | None:
        """Return how the slot's next episode begins; None if there is no more work for it."""
        start = self._start(slot, int(self._episodes[slot]))
        self._episodes[slot] += 1
        if self._task_draw is not None:
            self._forget(slot)
        return start

    def _forget(self, slot: int) -> None:
        """Forget tasks that no member of a slot's group can ask for again."""
        size = self.options.group_size
        first = slot // size * size
        fixed = self.options.fixed_reset_ids
        before = self._redraws if fixed else int(self._episodes[first : first + size].min())
        self._task_draw.forget((self._first_slot + slot) // size, before)

    def _start(self, slot: int, episode: int) -> Start | None:
        options = self.options
        group = (self._first_slot + slot) // options.group_size
        if options.specific_reset_id is not None:
            reset_id = options.specific_reset_id
        elif options.ordered_reset_ids:
            reset_id = group + episode * self._num_groups
            if reset_id >= self.num_reset_states:
                return None
        else:
            count = self._redraws if options.fixed_reset_ids else episode
            if self._task_draw is not None:
                return self._task_draw.start(group, count)
            drawn, seed = self._hash(0, group, count)
            if self.num_reset_states is None:
                return Start(-1, seed)
            reset_id = drawn % self.num_reset_states
        return Start(reset_id, self._hash(1, reset_id)[1])

    def _hash(self, *key: int) -> tuple[int, int]:
        drawn, seed = derive(self.options.seed, *key)
        return drawn, seed & ~1

    def get_state(self) -> dict[str, Any]:
        """Return the counters, and what the draw of tasks remembers."""
        state = {"episodes": self._episodes.copy(), "redraws": self._redraws}
        return state if self._task_draw is None else state | {"tasks": self._task_draw.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from counters that `get_state` returned."""
        self._episodes[:] = state["episodes"]
        self._redraws = int(state["redraws"])
        if self._task_draw is not None:
            self._task_draw.set_state(state["tasks"])
