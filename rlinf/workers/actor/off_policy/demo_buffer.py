"""The demonstrations that a share of each batch is drawn from: a dataset, or a saved buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.replay import replay_trajectories
from rlinf.data.demonstrations.rewards import check_rewards
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.layout import find_root
from rlinf.data.replay import MixedReplay, ReplayTrajectory
from rlinf.data.replay.build import ReplayPlace, build_mixed
from rlinf.models.embodiment.base_policy import BasePolicy
from rlinf.workers.actor.imitation.fitting_data import share_out_of_range, used_observations

_MOST_OUT_OF_RANGE = 0.01
"""Share of actions beyond the bounds above which data are told to look odd."""


def build_with_demos(
    cfg: Any, model: BasePolicy, place: ReplayPlace, tell: Callable[[str], None]
) -> tuple[MixedReplay, dict[str, float]]:
    """Make an empty replay buffer with the demonstrations of this rank beside it.

    Args:
        cfg: the configuration, with `algorithm.replay_buffer` and `algorithm.demo_buffer`.
        model: the policy, which says what of an observation is kept.
        place: where the buffers are.
        tell: tells the user something.

    Returns:
        The buffer, and what the episodes of all ranks came to; nothing of a saved buffer.

    Raises:
        ValueError: the demonstrations do not fit the policy or the reward of the run, or there
            are fewer than ranks.
    """
    algorithm = cfg.algorithm
    section = algorithm.demo_buffer
    episodes, outcomes = None, {}
    if is_dataset(section.load_path):
        check_rewards(section.load_path, cfg.env.train, tell)
        episodes, outcomes = _episodes(section.load_path, model, place, tell)
    return build_mixed(algorithm.replay_buffer, section, place, episodes), outcomes


def is_dataset(path: str) -> bool:
    """Return whether a folder is a LeRobot dataset."""
    try:
        find_root(path)
    except DatasetError:
        return False
    return True


def _episodes(
    path: str, model: BasePolicy, place: ReplayPlace, tell: Callable[[str], None]
) -> tuple[list[ReplayTrajectory], dict[str, float]]:
    """Read this rank's episodes of a dataset, and what all of them came to."""

    def keep(obs: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: value.cpu() for name, value in model.replay_inputs(obs).items()}

    folders = DemonstrationFolders([path])
    demos = folders.load(used_observations(model, folders, lambda obs, _: keep(obs)))
    out = share_out_of_range(model, demos.actions)
    if out > _MOST_OUT_OF_RANGE:
        tell(
            f"{out:.0%} of the actions of {path} are outside of the env's range; are they in its "
            "units?"
        )
    trajectories = replay_trajectories(demos, model.num_action_chunks, keep)
    own = [
        trajectory
        for number, trajectory in enumerate(trajectories)
        if number % place.world_size == place.rank
    ]
    return own, demos.outcomes()
