"""Keys that ManiSkill adds to `env.train` and `env.eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import SimulatorKeys, VectorEnvKeys, arguments


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

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `NotFiniteKeys.observed`; what `init_params` has goes before other keys."""
        own = section["init_params"]
        seen = {key: own.get(key, section[key]) for key in ("obs_mode", "control_mode")}
        seen |= arguments(section, "robot_uids")
        frequency = (own.get("sim_config") or {}).get("control_freq")
        seen |= {"init_params.sim_config.control_freq": frequency}
        if seen["obs_mode"] != "state":
            seen |= {"image_size": section["image_size"]}
            seen |= arguments(section, "sensor_configs", "shader_dir")
        return seen


register_schema("env", "maniskill", ManiSkillKeys)
