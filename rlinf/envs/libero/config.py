"""Keys that LIBERO adds to `env.train` and `env.eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import NotFiniteKeys, SimulatorKeys, arguments


class LiberoKeys(SimulatorKeys, NotFiniteKeys):
    """Keys of LIBERO."""

    task_suite_name: str = Field(..., description="Task suite, such as `libero_spatial`.")
    task_ids: list[Int] = Field(
        default_factory=list, description="Tasks of the suite to use; empty for all."
    )
    image_size: Int = Field(256, gt=0, description="Height and width of images (pixels).")
    settle_steps: Int = Field(
        15, ge=0, description="Steps at rest after a reset, until objects lie still."
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `NotFiniteKeys.observed`."""
        robot = "robots", "gripper_types", "controller", "control_freq"
        drawn = "render_collision_mesh", "render_visual_mesh"
        return {"image_size": section["image_size"]} | arguments(section, *robot, *drawn)


register_schema("env", "libero", LiberoKeys)
