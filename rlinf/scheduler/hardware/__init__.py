"""Hardware that processes are placed on: accelerators, robots, and types that plug-ins add."""

from rlinf.scheduler.hardware.accelerator import (
    Accelerator,
    AcceleratorInfo,
    AcceleratorType,
    AcceleratorUtil,
    accelerator_resource,
)
from rlinf.scheduler.hardware.base import (
    Hardware,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    enumerate_hardware,
)
from rlinf.scheduler.hardware.franka import Franka, FrankaConfig, FrankaHWInfo
from rlinf.scheduler.hardware.turtle2 import Turtle2, Turtle2Config, Turtle2HWInfo

__all__ = [
    "Accelerator",
    "AcceleratorInfo",
    "AcceleratorType",
    "AcceleratorUtil",
    "Franka",
    "FrankaConfig",
    "FrankaHWInfo",
    "Hardware",
    "HardwareInfo",
    "HardwareResource",
    "NodeHardwareConfig",
    "Turtle2",
    "Turtle2Config",
    "Turtle2HWInfo",
    "accelerator_resource",
    "enumerate_hardware",
]
