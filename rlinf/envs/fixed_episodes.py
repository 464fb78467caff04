"""Numbered episodes, each of which always begins alike, played one after the other.

Evaluations play them, and whoever collects episodes, which begin as those of training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlinf.envs.options import VectorEnvOptions
from rlinf.envs.starts import Start, derive
from rlinf.envs.tasks import TaskTable

_SEED_OF_STATE, _SEED_OF_EPISODE, _ORDER = 1, 2, 3
"""First numbers of the keys from which seeds are derived; `ResetPlan` has the first one, too."""


class FixedEpisode(NamedTuple):
    """One numbered episode.

    Attributes:
        number: From 0.
        task: Name of its task.
        start: How it begins.
    """

    number: int
    task: str
    start: Start


class EpisodePlan:
    """How numbered episodes begin.

    Only the number of an episode, the seed of the config, the env's list of reset states and the
    weights of its tasks decide it. Episode `e` is of the task that is furthest behind its share of
    the first `e + 1` episodes, the first one of several: task `e mod T` of `T` that weigh alike.
    If `k` episodes before it are of that task, it begins

        in state k of the task's, in an order that the seed gives, modulo their number
        with seed hash(cfg.seed, e)       if there is no list of reset states
        in state e                        with ordered reset ids
        in the specific reset state       if there is one

    With a group size `G`, `G` episodes in a row begin alike: `e // G` takes the place of `e`.

    Seeds of evaluations are odd, and those of training even: where a seed decides how an episode
    begins, an evaluation has no start that training has.
    """

    def __init__(
        self,
        options: VectorEnvOptions,
        tasks: TaskTable,
        evaluation: bool = True,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Keep what decides.

        Args:
            options: Of the env.
            tasks: Of the env.
            evaluation: Seeds are those of evaluations; else those of training.
            weights: How often each task is played, relative to the others; None is all alike.

        Raises:
            ValueError: They are not one number from 0 for each task, or all of them are 0.
        """
        self._options, self._tasks, self._parity = options, tasks, int(evaluation)
        self._playable = tasks.playable
        self._shares = tasks.shares([1.0] * len(tasks) if weights is None else weights)
        self._counts = [0] * len(tasks)
        self._visits: list[tuple[int, int]] = []
        self._ordered: dict[int, list[int]] = {}

    def episode(self, number: int) -> FixedEpisode:
        """Return an episode.

        Args:
            number: From 0.

        Raises:
            ValueError: Ordered reset states are used up before it.
        """
        options, index = self._options, number // self._options.group_size
        if options.specific_reset_id is not None:
            return self._in_state(number, options.specific_reset_id)
        tasks = self._tasks
        if not tasks.listed:
            task, _ = self._visit(index)
            reset_id = task if len(tasks) > 1 else -1
            seed = self._seed(_SEED_OF_EPISODE, index)
            return FixedEpisode(number, tasks.names[task], Start(reset_id, seed))
        if options.ordered_reset_ids:
            count = sum(len(tasks.states(task)) for task in self._playable)
            if index >= count:
                raise ValueError(
                    f"there is no episode {number}: use_ordered_reset_state_ids plays each of the "
                    f"{count} reset states once (group size {options.group_size}); set "
                    f"runner.eval_episodes to at most {count * options.group_size}, or turn it off"
                )
            return self._in_state(number, index)
        task, visit = self._visit(index)
        states = self._in_order(task)
        return self._in_state(number, states[visit % len(states)])

    def _visit(self, index: int) -> tuple[int, int]:
        """Return the task of an episode, and how many before it are of that task."""
        while len(self._visits) <= index:
            behind = self._shares * (len(self._visits) + 1) - self._counts
            task = int(behind.argmax())
            self._visits.append((task, self._counts[task]))
            self._counts[task] += 1
        return self._visits[index]

    def _in_state(self, number: int, state: int) -> FixedEpisode:
        task = self._tasks.names[self._tasks.task_of(state)]
        return FixedEpisode(number, task, Start(state, self._seed(_SEED_OF_STATE, state)))

    def _seed(self, *key: int) -> int:
        return derive(self._options.seed, *key)[1] & ~1 | self._parity

    def _in_order(self, task: int) -> list[int]:
        if task not in self._ordered:
            seed = self._options.seed
            states = self._tasks.states(task)
            self._ordered[task] = sorted(states, key=lambda state: derive(seed, _ORDER, state))
        return self._ordered[task]


class EpisodeQueue:
    """Numbered episodes that slots play one after the other.

    An episode is the same whichever slot of whichever env plays it, so an evaluation can be spread
    over any number of slots and processes.

    Args:
        episodes: What is to be played, in this order.
        num_envs: Slots that play.

    Attributes:
        playing: Which episode each slot plays; None where it rests.
    """

    def __init__(self, episodes: Iterable[FixedEpisode], num_envs: int) -> None:
        self._waiting = deque(episodes)
        self.playing: list[FixedEpisode | None] = [None] * num_envs

    def next(self, slot: int) -> Start | None:
        """Give a slot the next episode; return how it begins, None if there is none left."""
        self.playing[slot] = episode = self._waiting.popleft() if self._waiting else None
        return None if episode is None else episode.start
