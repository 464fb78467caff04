"""Keys that environments with Gymnasium's interface add to `env.train` and `env.eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.envs.config import SimulatorKeys, VectorEnvKeys, arguments

SEEN = (
    "contact_force_range",
    "exclude_current_positions_from_observation",
    "include_cfrc_ext_in_observation",
    "include_cinert_in_observation",
    "include_cvel_in_observation",
    "include_qfrc_actuator_in_observation",
    "obs_type",
    "tasks_to_complete",
    "touch_get_obs",
    "use_contact_forces",
)
"""Arguments that say what is seen: of Gymnasium's envs, gymnasium-robotics and Atari."""

DONE = (
    "continuous",
    "frame_skip",
    "frameskip",
    "full_action_space",
    "n_substeps",
    "relative_control",
)
"""Likewise, those that say what an action is, or how long it lasts."""


class GymnasiumEnvKeys(SimulatorKeys, VectorEnvKeys):
    """Keys of every env with Gymnasium's interface."""

    success_key: str | None = Field(
        None,
        description="Key of the env's info that says whether the task is solved; null looks for "
        "is_success, success and tasks_to_complete.",
    )
    task_description: str | None = Field(
        None, description="What is to be done, in words; null is the name of the env."
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `NotFiniteKeys.observed`; rewards, ends, noise and worlds may differ."""
        return arguments(section, *SEEN, *DONE)


class GymnasiumKeys(GymnasiumEnvKeys):
    """Keys of any environment registered with Gymnasium."""

    id: str = Field(..., description="Registered id, such as `HalfCheetah-v5`.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Passed to gymnasium.make as they are."
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `GymnasiumEnvKeys.observed`."""
        return super().observed(section) | arguments(section, *SEEN, *DONE, key="kwargs")


register_schema("env", "gymnasium", GymnasiumKeys)
