"""Gives every group of envs the task of its next episode, in proportion to weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.envs.options import VectorEnvOptions, option
from rlinf.envs.start_samplers import make_start_sampler
from rlinf.envs.starts import Start, derive
from rlinf.envs.tasks import TaskTable

_SEED_OF_STATE, _ORDER, _STATE, _SEED = 1, 4, 5, 6
"""First numbers of the keys from which numbers are derived; `ResetPlan` has 0 and 1."""

_GOLDEN = (5**0.5 - 1) / 2


def make_task_draw(
    cfg: Any, options: VectorEnvOptions, tasks: TaskTable, num_groups: int
) -> TaskDraw | None:
    """Return the draw of an env, with the weights that a run begins with; None for a single task.

    Args:
        cfg: `env.train` or `env.eval`.
        options: Of the env.
        tasks: Of the env.
        num_groups: Groups of envs in the whole run.
    """
    weights = first_weights(cfg, tasks)
    return None if weights is None else TaskDraw(tasks, weights, options.seed, num_groups)


def first_weights(cfg: Any, tasks: TaskTable) -> list[float] | None:
    """Return how often a run plays each of its tasks until it knows more; None for a single task.

    Args:
        cfg: `env.train` or `env.eval`.
        tasks: Of the env.
    """
    if len(tasks) == 1:
        return None
    return make_start_sampler(option(cfg, "start_sampler"), tasks.names).weights()


class TaskDraw:
    """Draws tasks and starts for the `G` groups of a whole run.

    Group `g` begins its n-th episode in the task whose part of the line from 0 to 1, in proportion
    to the weights, holds

        (order[g] + shift(n)) / G

    where `order` is a permutation of the groups that the seed gives, and `shift(n)` the fraction of
    `shift(0) + n * golden ratio`, which fills the line evenly. So of the G episodes with the same n
    each task has its share, rounded down or up, and a group changes its task only where its place
    is near the end of a part. Within the task the start is drawn by (seed, g, n).

    Weights may change in between. What a group has drawn for n stays, until no member of it can ask
    for it again: members begin their n-th episodes at different times, and alike.

    Args:
        tasks: Of the env.
        weights: One per task, at least 0.
        seed: Of the config.
        num_groups: G.
    """

    def __init__(
        self, tasks: TaskTable, weights: Sequence[float], seed: int, num_groups: int
    ) -> None:
        self._tasks, self._seed, self._num_groups = tasks, seed, num_groups
        rng = np.random.default_rng(derive(seed, _ORDER)[0])
        self._order = rng.permutation(num_groups)
        self._shift = rng.random()
        self._drawn: dict[int, dict[int, int]] = {}
        self.set_weights(weights)

    def set_weights(self, weights: Sequence[float]) -> None:
        """Use other weights from now on.

        Raises:
            ValueError: They are not one number from 0 for each task, or all of them are 0.
        """
        shares = self._tasks.shares(weights)
        self._weights = np.array(weights, dtype=np.float64)
        self._bounds = np.cumsum(shares)
        # Rounding must not leave a gap at the end of the line.
        self._bounds[np.flatnonzero(shares)[-1] :] = 1.0

    def start(self, group: int, count: int) -> Start:
        """Return how a group begins its episode number `count`."""
        task = self._task(group, count)
        if not self._tasks.listed:
            return Start(task, derive(self._seed, _SEED, group, count)[1] & ~1)
        states = self._tasks.states(task)
        state = states[derive(self._seed, _STATE, group, count)[0] % len(states)]
        return Start(state, derive(self._seed, _SEED_OF_STATE, state)[1] & ~1)

    def _task(self, group: int, count: int) -> int:
        drawn = self._drawn.setdefault(group, {})
        if count not in drawn:
            shift = (self._shift + count * _GOLDEN) % 1.0
            place = (self._order[group] + shift) / self._num_groups
            drawn[count] = int(np.searchsorted(self._bounds, place, side="right"))
        return drawn[count]

    def forget(self, group: int, before: int) -> None:
        """Forget what a group drew for episodes before a number."""
        drawn = self._drawn.get(group, {})
        for count in [count for count in drawn if count < before]:
            del drawn[count]

    def get_state(self) -> dict[str, Any]:
        """Return weights, and what was drawn and may be asked for again."""
        drawn = [
            (group, count, task)
            for group, of_group in sorted(self._drawn.items())
            for count, task in sorted(of_group.items())
        ]
        return {
            "weights": self._weights.copy(),
            "drawn": np.array(drawn, dtype=np.int64).reshape(-1, 3),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self.set_weights(state["weights"])
        self._drawn = {}
        for group, count, task in np.asarray(state["drawn"]).tolist():
            self._drawn.setdefault(group, {})[count] = task
