"""Makes replay buffers from the sections `replay_buffer` and `demo_buffer` of a config."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlinf.data.replay.buffer import TrajectoryReplayBuffer
from rlinf.data.replay.mixed import MixedReplay
from rlinf.data.replay.sampling import Priorities
from rlinf.data.replay.saved import find_shards, join_shards
from rlinf.data.replay.trajectory import ReplayTrajectory


@dataclass(frozen=True)
class ReplayPlace:
    """Where buffers are, and what they share with the learner.

    Attributes:
        folder: of the run, for the files of buffers; each rank has its own in it. None keeps none,
            and each checkpoint writes all rows.
        seed: of the draws.
        gamma: discount factor.
        discount_per: what it counts.
        rank: of the actor.
        world_size: ranks of the actor.
    """

    folder: Path | None = None
    seed: int = 0
    gamma: float = 0.99
    discount_per: Literal["step", "chunk"] = "step"
    rank: int = 0
    world_size: int = 1

    def arguments(self) -> dict[str, Any]:
        """Return what both buffers are made with."""
        names = ("seed", "gamma", "discount_per", "rank", "world_size")
        return {name: getattr(self, name) for name in names}

    def working_folder(self, name: str) -> Path | None:
        """Return the folder of a buffer of this rank."""
        return None if self.folder is None else self.folder / "replay" / f"{name}_{self.rank}"

    def remove_folders(self) -> None:
        """Remove what closed buffers of this rank have left in the folder of the run."""
        if self.folder is None:
            return
        for name in ("replay", "demos"):
            shutil.rmtree(self.working_folder(name), ignore_errors=True)
        # Other ranks may still have theirs.
        with contextlib.suppress(OSError):
            (self.folder / "replay").rmdir()

    def share(self, count: int | None) -> int | None:
        """Return how many of a number of transitions over all ranks each rank has, rounded up."""
        return None if count is None else -(-count // self.world_size)


def build_replay(section: Any, place: ReplayPlace) -> TrajectoryReplayBuffer:
    """Make an empty buffer.

    Args:
        section: `ReplayBufferConfig`.
        place: where it is.
    """
    priorities = section.priorities
    return TrajectoryReplayBuffer(
        place.share(section.cache_size),
        folder=place.working_folder("replay"),
        enable_cache=section.enable_cache,
        auto_save=section.auto_save,
        sample_window_size=place.share(section.sample_window_size),
        min_buffer_size=place.share(section.min_buffer_size),
        n_step=section.n_step,
        priorities=None
        if priorities is None
        else Priorities(priorities.alpha, priorities.beta, priorities.epsilon),
        **place.arguments(),
    )


def build_mixed(
    section: Any,
    demo_section: Any,
    place: ReplayPlace,
    episodes: Sequence[ReplayTrajectory] | None = None,
) -> MixedReplay:
    """Make an empty buffer, and one with the demonstrations of this rank beside it.

    Args:
        section: `ReplayBufferConfig`.
        demo_section: `DemoBufferConfig`.
        place: where they are.
        episodes: this rank's demonstrations; None reads those of a saved buffer.

    Raises:
        ReplayDamaged: the demonstrations are missing or damaged; says which file.
        ValueError: there are fewer episodes than ranks, or more than `cache_size` holds.
    """
    if episodes is None:
        shards = find_shards(demo_section.load_path)
        count = len(join_shards(shards, place.rank, place.world_size))
    else:
        count = sum(len(episode) for episode in episodes)
    if not count:
        raise ValueError(
            f"{demo_section.load_path} has no episode for rank {place.rank} of {place.world_size}; "
            "it needs at least one for each rank"
        )
    demos = TrajectoryReplayBuffer(
        place.share(demo_section.cache_size) or count,
        folder=place.working_folder("demos"),
        enable_cache=section.enable_cache,
        n_step=section.n_step,
        overwrite=False,
        **place.arguments(),
    )
    if episodes is None:
        demos.load_checkpoint(demo_section.load_path, verify=False, demonstrations=True)
    else:
        demos.add_trajectories(episodes)
    return MixedReplay(build_replay(section, place), demos, demo_section.demo_ratio)
