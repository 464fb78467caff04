"""Keys that the built-in environments add to `env.train` and `env.eval`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int, Section


class MetaWorldKeys(Section):
    """Keys of MetaWorld."""

    task: str = Field(
        "button-press-v3", description="A MetaWorld task, or MT10 or MT50 for that many."
    )
    obs_mode: Literal["state", "image", "state_image"] = Field(
        "state", description="What the policy sees."
    )
    image_size: Int = Field(84, gt=0, description="Height and width of images (pixels).")
    camera_name: str = Field("corner2", description="Camera that takes the images.")


class GymnasiumKeys(Section):
    """Keys of any environment registered with Gymnasium."""

    id: str = Field(..., description="Registered id, such as `HalfCheetah-v5`.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Passed to gymnasium.make as they are."
    )


class EnvPoolKeys(Section):
    """Keys of EnvPool."""

    id: str = Field(..., description="EnvPool task id.")
    num_threads: Int | None = Field(
        None, gt=0, description="Threads of the pool; null lets it pick."
    )


class ManiSkillKeys(Section):
    """Keys of ManiSkill."""

    id: str = Field(..., description="ManiSkill environment id, such as `PickCube-v1`.")
    obs_mode: str = Field("state", description="Observation mode of the simulator.")
    control_mode: str | None = Field(None, description="Control mode; null is the env's own.")


class LiberoKeys(Section):
    """Keys of LIBERO."""

    task_suite_name: str = Field(..., description="Task suite, such as `libero_spatial`.")
    image_size: Int = Field(256, gt=0, description="Height and width of images (pixels).")


for _name, _keys in {
    "metaworld": MetaWorldKeys,
    "gymnasium": GymnasiumKeys,
    "envpool": EnvPoolKeys,
    "maniskill": ManiSkillKeys,
    "libero": LiberoKeys,
}.items():
    register_schema("env", _name, _keys)
