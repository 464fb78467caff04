"""The Franka arm: an example of a robot as hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.config.placement.errors import did_you_mean
from rlinf.scheduler.hardware.base import (
    Hardware,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
)
from rlinf.scheduler.hardware.robot import check_reachable, fill_from_env

_CHOICES = {
    "camera_type": ("realsense", "zed", "lumos"),
    "gripper_type": ("franka", "robotiq"),
}


@NodeHardwareConfig.register_hardware_config("Franka")
@dataclass
class FrankaConfig(NodeHardwareConfig):
    """Fields of a Franka; those left ``None`` come from variables such as ``ROBOT_IP``."""

    robot_ip: str | None = None
    camera_serials: list[str] | None = None
    camera_type: str | None = None
    """``realsense`` (used when unset), ``zed`` or ``lumos``."""
    gripper_type: str | None = None
    """``franka`` (used when unset) or ``robotiq``."""
    gripper_connection: str | None = None
    """Serial port of a Robotiq gripper."""
    controller_node_rank: int | None = None
    """Node that runs the controller; the robot's own when unset."""
    disable_validate: bool | None = None
    """Do not ping the robot."""

    def __post_init__(self) -> None:
        """Check the choices."""
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                hint = did_you_mean(str(value), choices)
                raise ValueError(f"{name} is {value!r}; use one of {', '.join(choices)}. {hint}")
        if self.camera_serials is not None:
            self.camera_serials = [str(serial) for serial in self.camera_serials]
        if self.controller_node_rank is not None:
            self.controller_node_rank = int(self.controller_node_rank)
        if isinstance(self.disable_validate, str):
            self.disable_validate = self.disable_validate.lower() in ("1", "true", "yes", "on")


@dataclass
class FrankaHWInfo(HardwareInfo):
    """One Franka of a node, ready for use."""

    type: str = "Franka"
    config: FrankaConfig | None = None


@Hardware.register()
class Franka(Hardware):
    """Franka arms, found by their address."""

    HW_TYPE = "Franka"

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[NodeHardwareConfig] | None = None
    ) -> HardwareResource | None:
        """Complete the configs of this node and check that every arm answers."""
        arms = [c for c in configs or [] if isinstance(c, FrankaConfig)]
        infos: list[HardwareInfo] = []
        for arm in fill_from_env(FrankaConfig, node_rank, arms, identifier="robot_ip"):
            if not arm.disable_validate:
                check_reachable(str(arm.robot_ip), f"the Franka of node {node_rank}")
            infos.append(FrankaHWInfo(model="Franka", config=arm))
        return HardwareResource(cls.HW_TYPE, infos) if infos else None
