"""Keys that ManiSkill adds to `env.train` and `env.eval`."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import SimulatorKeys, VectorEnvKeys


class ManiSkillKeys(SimulatorKeys, VectorEnvKeys):
    """Keys of ManiSkill."""

    id: str = Field(..., description="ManiSkill environment id, such as `PickCube-v1`.")
    obs_mode: str = Field("state", description="Observation mode of the simulator: state or rgb.")
    control_mode: str | None = Field(None, description="Control mode; null is the env's own.")
    reward_mode: str | None = Field(None, description="Reward mode; null is the env's own.")
    sim_backend: str = Field("auto", description="Where physics run: auto, gpu or cpu.")
    image_size: Int | None = Field(
        None, gt=0, description="Height and width of images (pixels); null is the env's own."
    )
    task_description: str | None = Field(
        None, description="What is to be done, in words; null is the id."
    )


register_schema("env", "maniskill", ManiSkillKeys)
