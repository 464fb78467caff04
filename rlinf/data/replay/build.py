"""Makes replay buffers from the sections `replay_buffer` and `demo_buffer` of a config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlinf.data.replay.buffer import TrajectoryReplayBuffer
from rlinf.data.replay.mixed import MixedReplay
from rlinf.data.replay.sampling import Priorities
from rlinf.data.replay.saved import find_shards, join_shards


@dataclass(frozen=True)
class ReplayPlace:
    """Where buffers are, and what they share with the learner.

    Attributes:
        folder: of the run, for the files of buffers; each rank has its own in it.
        seed: of the draws.
        gamma: discount factor.
        discount_per: what it counts.
        rank: of the actor.
        world_size: ranks of the actor.
    """

    folder: Path
    seed: int = 0
    gamma: float = 0.99
    discount_per: Literal["step", "chunk"] = "step"
    rank: int = 0
    world_size: int = 1

    def arguments(self) -> dict[str, Any]:
        """Return what both buffers are made with."""
        names = ("seed", "gamma", "discount_per", "rank", "world_size")
        return {name: getattr(self, name) for name in names}

    def working_folder(self, name: str) -> Path:
        """Return the folder of a buffer of this rank."""
        return self.folder / "replay" / f"{name}_{self.rank}"


def build_replay(section: Any, place: ReplayPlace) -> TrajectoryReplayBuffer:
    """Make an empty buffer.

    Args:
        section: `ReplayBufferConfig`.
        place: where it is.
    """
    priorities = section.priorities
    return TrajectoryReplayBuffer(
        section.cache_size,
        folder=place.working_folder("replay"),
        enable_cache=section.enable_cache,
        auto_save=section.auto_save,
        sample_window_size=section.sample_window_size,
        min_buffer_size=section.min_buffer_size,
        n_step=section.n_step,
        priorities=None
        if priorities is None
        else Priorities(priorities.alpha, priorities.beta, priorities.epsilon),
        **place.arguments(),
    )


def build_mixed(section: Any, demo_section: Any, place: ReplayPlace) -> MixedReplay:
    """Make an empty buffer, and one with the demonstrations of this rank beside it.

    Args:
        section: `ReplayBufferConfig`.
        demo_section: `DemoBufferConfig`.
        place: where they are.

    Raises:
        ReplayDamaged: the demonstrations are missing or damaged; says which file.
        ValueError: there are fewer episodes than ranks, or more than `cache_size` holds.
    """
    shards = find_shards(demo_section.load_path)
    count = len(join_shards(shards, place.rank, place.world_size))
    if not count:
        raise ValueError(
            f"{demo_section.load_path} has no episode for rank {place.rank} of {place.world_size}; "
            "it needs at least one for each rank"
        )
    demos = TrajectoryReplayBuffer(
        demo_section.cache_size or count,
        folder=place.working_folder("demos"),
        enable_cache=section.enable_cache,
        n_step=section.n_step,
        overwrite=False,
        **place.arguments(),
    )
    demos.load_checkpoint(demo_section.load_path, verify=False, demonstrations=True)
    return MixedReplay(build_replay(section, place), demos, demo_section.demo_ratio)
