"""Keys that EnvPool adds to `env.train` and `env.eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import NotFiniteKeys, SimulatorKeys, arguments

SEEN = (
    "exclude_current_positions_from_observation",
    "frame_stack",
    "from_pixels",
    "gray_scale",
    "img_height",
    "img_width",
    "partially_observable",
    "stack_num",
    "use_contact_force",
)
"""Arguments that say what is seen."""

DONE = "frame_skip", "full_action_space"
"""Likewise, those that say what an action is, or how long it lasts."""


class EnvPoolKeys(SimulatorKeys, NotFiniteKeys):
    """Keys of EnvPool."""

    id: str = Field(
        ...,
        description="EnvPool task id, such as `HalfCheetah-v4`, or the name of a MetaWorld task.",
    )
    num_threads: Int | None = Field(
        None, gt=0, description="Threads of the pool; null lets it pick."
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `NotFiniteKeys.observed`."""
        found = arguments(section, *SEEN, *DONE)
        # Goals are seen unless one says otherwise.
        hidden = "init_params.partially_observable"
        return {**found, hidden: bool(found[hidden])}


register_schema("env", "envpool", EnvPoolKeys)
