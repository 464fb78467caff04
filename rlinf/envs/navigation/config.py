"""Keys that navigation adds to `env.train` and `env.eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.envs.config import VectorEnvKeys
from rlinf.envs.navigation.landmarks import COLOURS, SHAPES


class NavigationKeys(VectorEnvKeys):
    """Keys of navigation by instruction."""

    size: Int = Field(7, ge=3, description="Cells along each side of the world.")
    rooms: Literal[1, 2, 4] = Field(1, description="Rooms, with doors between them.")
    landmarks: Int = Field(
        3,
        ge=1,
        description="Landmarks in a world, all different; the instruction names one of them.",
    )
    colours: list[Literal["red", "green", "blue", "yellow"]] = Field(
        default_factory=lambda: list(COLOURS), min_length=1, description="Colours of landmarks."
    )
    shapes: list[Literal["ball", "box", "cone", "cross"]] = Field(
        default_factory=lambda: list(SHAPES), min_length=1, description="Shapes of landmarks."
    )
    view: Int = Field(
        5, ge=3, description="Cells that the agent sees ahead, and across; an odd number."
    )
    reward: Literal["dense", "success"] = Field(
        "dense",
        description="1 for a stop beside the named landmark, and with dense a tenth for each cell "
        "nearer to it (and less a tenth for each further away).",
    )
    swap_instructions: bool = Field(
        False,
        description="Name another landmark of the world instead, to see whether the policy reads "
        "what it is told; success stays that of the task. For evaluations.",
    )

    @classmethod
    def observed(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `NotFiniteKeys.observed`; worlds and instructions may differ."""
        return {"view": section["view"]}

    @field_validator("view")
    @classmethod
    def _has_a_middle(cls, view: int) -> int:
        if view % 2 == 0:
            raise ValueError(f"must be odd, so that the agent is in the middle, not {view}")
        return view


register_schema("env", "navigation", NavigationKeys)
