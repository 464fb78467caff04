"""The tasks of an env, and which task a reset state belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


class TaskTable:
    """Tasks of an env, numbered from 0, with the reset states of each.

    Args:
        names: Their names.
        states_of: Returns the reset states of a task; None when a seed is all there is. Then a
            start of several tasks has the number of its task as its reset id.

    Attributes:
        names: Their names.
        listed: Whether there is a list of reset states.
    """

    def __init__(
        self, names: Sequence[str], states_of: Callable[[int], Sequence[int]] | None
    ) -> None:
        self.names, self.listed = list(names), states_of is not None
        every = range(len(self.names))
        self._states = [] if states_of is None else [states_of(task) for task in every]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def playable(self) -> list[int]:
        """Tasks that an episode can begin in: with fewer reset states than tasks not all."""
        every = range(len(self))
        return [task for task in every if self._states[task]] if self.listed else list(every)

    def states(self, task: int) -> Sequence[int]:
        """Return the reset states of a task; asked only where they are listed."""
        return self._states[task]

    def task_of(self, reset_id: int) -> int:
        """Return the number of the task that a reset state belongs to; -1 if there is none."""
        if not self.listed:
            return max(0, reset_id) % len(self)
        states = enumerate(self._states)
        return next((task for task, of_task in states if reset_id in of_task), -1)

    def shares(self, weights: Sequence[float]) -> np.ndarray:
        """Return the share of each task, in proportion to weights; 0 where none can be played.

        Args:
            weights: One per task, at least 0.

        Raises:
            ValueError: They are not one number from 0 for each task, or all of them are 0.
        """
        given = np.array(weights, dtype=np.float64)
        if given.shape != (len(self),) or not np.isfinite(given).all() or (given < 0).any():
            raise ValueError(
                f"weights of tasks are {list(weights)}; expected {len(self)} numbers from 0, one "
                f"for each of {', '.join(self.names)}"
            )
        used = np.zeros_like(given)
        used[self.playable] = given[self.playable]
        if not used.any():
            raise ValueError(
                f"no task can be drawn: the weights of {', '.join(self.names)} are "
                f"{list(weights)}; give one that has starts a weight above 0"
            )
        return used / used.sum()
