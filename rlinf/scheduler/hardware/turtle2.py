"""The Turtle2: a robot that needs no configuration but its node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.scheduler.hardware.base import (
    Hardware,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
)


@NodeHardwareConfig.register_hardware_config("Turtle2")
@dataclass
class Turtle2Config(NodeHardwareConfig):
    """A Turtle2 is known by its node."""


@dataclass
class Turtle2HWInfo(HardwareInfo):
    """One Turtle2 of a node."""

    type: str = "Turtle2"
    config: NodeHardwareConfig | None = None


@Hardware.register()
class Turtle2(Hardware):
    """One robot for each entry of the config, or one on each node of a group without entries."""

    HW_TYPE = "Turtle2"

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[NodeHardwareConfig] | None = None
    ) -> HardwareResource | None:
        """One robot per config of this node, or one without configs."""
        robots = configs or [Turtle2Config(node_rank)]
        infos: list[HardwareInfo] = [Turtle2HWInfo(model="Turtle2", config=c) for c in robots]
        return HardwareResource(cls.HW_TYPE, infos) if infos else None
