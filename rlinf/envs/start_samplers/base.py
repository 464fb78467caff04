"""What a start sampler is: it sees how episodes end and says how often tasks are played."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple


class EpisodeOutcome(NamedTuple):
    """How an episode of training ended.

    Attributes:
        task: Number of its task, from 0.
        reset_id: Reset state in which it began; the number of the task if there is no list of them.
        success: Solved at any step; None if the env does not tell.
        ret: Sum of its rewards.
        length: Its steps.
    """

    task: int
    reset_id: int
    success: bool | None
    ret: float
    length: int


def list_outcomes(infos: Mapping[str, Any], has_success: bool) -> list[EpisodeOutcome]:
    """List the episodes that ended in a chunk and count.

    Args:
        infos: Of the last step of the chunk, in which episodes ended.
        has_success: Whether the env tells when a task is solved.
    """
    metrics = infos["episode"]
    return [
        EpisodeOutcome(
            task=int(infos["episode_tasks"][slot]),
            reset_id=int(infos["episode_reset_ids"][slot]),
            success=bool(metrics["success_once"][slot]) if has_success else None,
            ret=float(metrics["return"][slot]),
            length=int(metrics["episode_len"][slot]),
        )
        for slot in infos["_episode"].nonzero().flatten().tolist()
    ]


class StartSampler(abc.ABC):
    """Says how often the tasks of a run are played.

    There is one for the whole run. It sees the episodes of a rollout when the rollout is over, and
    its weights hold from the next one on.

    Args:
        cfg: `env.train.start_sampler`, with the keys that the sampler registered.
        tasks: Names of the tasks.

    Attributes:
        adapts: Its weights depend on outcomes; otherwise it is asked once and sees none.
    """

    adapts: ClassVar[bool] = True

    def __init__(self, cfg: Any, tasks: Sequence[str]) -> None:
        self.cfg, self.tasks = cfg, list(tasks)

    @abc.abstractmethod
    def weights(self) -> list[float]:
        """Return a number from 0 for each task: its share of episodes, relative to the others."""

    def observe(self, outcomes: Sequence[EpisodeOutcome]) -> None:  # noqa: B027
        """Learn from the episodes that ended in a rollout."""

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold, in plain data."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from such a state, which is of the same tasks."""
