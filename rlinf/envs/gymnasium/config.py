"""Keys that environments with Gymnasium's interface add to `env.train` and `env.eval`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.envs.config import SimulatorKeys, VectorEnvKeys


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


class GymnasiumKeys(GymnasiumEnvKeys):
    """Keys of any environment registered with Gymnasium."""

    id: str = Field(..., description="Registered id, such as `HalfCheetah-v5`.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Passed to gymnasium.make as they are."
    )


register_schema("env", "gymnasium", GymnasiumKeys)
