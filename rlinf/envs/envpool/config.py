"""Keys that EnvPool adds to `env.train` and `env.eval`."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import NotFiniteKeys, SimulatorKeys


class EnvPoolKeys(SimulatorKeys, NotFiniteKeys):
    """Keys of EnvPool."""

    id: str = Field(
        ...,
        description="EnvPool task id, such as `HalfCheetah-v4`, or the name of a MetaWorld task.",
    )
    num_threads: Int | None = Field(
        None, gt=0, description="Threads of the pool; null lets it pick."
    )


register_schema("env", "envpool", EnvPoolKeys)
