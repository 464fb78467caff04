"""Accelerators: vendors, what their tools are called, and how a worker sees only its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rlinf.config.placement.machine import NO_ACCELERATOR, VENDORS, local_accelerators
from rlinf.config.placement.resources import ACCELERATOR
from rlinf.scheduler.hardware.base import (
    Hardware,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
)


class AcceleratorType(str, Enum):
    """Vendor of a node's accelerators; a node has one."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    MUSA = "MUSA"
    NO_ACCEL = NO_ACCELERATOR


@dataclass(frozen=True)
class AcceleratorTraits:
    """What differs between vendors."""

    torch_device: str
    ccl_backend: str
    """Back-end of ``torch.distributed`` for device tensors."""
    visible_devices: str
    """Variable that selects devices."""
    ray_noset: str | None
    """Variable that keeps Ray from changing ``visible_devices``."""
    socket_interface: str | None
    """Variable that names the network interface for the back-end."""


def _traits(
    vendor: AcceleratorType,
    torch_device: str,
    ccl_backend: str,
    socket_interface: str | None,
    ray_sets_devices: bool = True,
) -> AcceleratorTraits:
    visible = VENDORS[vendor.value][0]
    noset = f"RAY_EXPERIMENTAL_NOSET_{visible}" if ray_sets_devices else None
    return AcceleratorTraits(torch_device, ccl_backend, visible, noset, socket_interface)


_T = AcceleratorType
TRAITS: dict[AcceleratorType, AcceleratorTraits] = {
    _T.NV_GPU: _traits(_T.NV_GPU, "cuda", "nccl", "NCCL_SOCKET_IFNAME"),
    _T.AMD_GPU: _traits(_T.AMD_GPU, "cuda", "nccl", "NCCL_SOCKET_IFNAME"),
    _T.INTEL_GPU: _traits(_T.INTEL_GPU, "xpu", "xccl", "CCL_KVS_IFACE"),
    _T.NPU: _traits(_T.NPU, "npu", "hccl", "HCCL_SOCKET_IFNAME"),
    _T.MUSA: _traits(_T.MUSA, "musa", "mccl", "MCCL_SOCKET_IFNAME", ray_sets_devices=False),
}


@dataclass
class AcceleratorInfo(HardwareInfo):
    """One accelerator of a node."""

    type: str = ACCELERATOR
    accelerator_type: AcceleratorType = AcceleratorType.NO_ACCEL
    device_id: str = ""
    """What selects it in the visible-devices variable of its node."""


@Hardware.register(is_default_hw=True)
class Accelerator(Hardware):
    """The accelerators that the environment of a node leaves visible."""

    HW_TYPE = ACCELERATOR

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[NodeHardwareConfig] | None = None
    ) -> HardwareResource | None:
        """Find the accelerators of this node; they need no configs."""
        vendor, devices = local_accelerators()
        return accelerator_resource(
            AcceleratorType(vendor), [(device.device_id, device.model) for device in devices]
        )


def accelerator_resource(
    vendor: AcceleratorType, devices: Sequence[tuple[str, str]]
) -> HardwareResource | None:
    """Return a resource of ``(device_id, model)`` accelerators; ``None`` without any."""
    infos: list[HardwareInfo] = [
        AcceleratorInfo(model=model, accelerator_type=vendor, device_id=device_id)
        for device_id, model in devices
    ]
    return HardwareResource(ACCELERATOR, infos) if infos else None


class AcceleratorUtil:
    """Questions about a vendor, answered from the table."""

    @staticmethod
    def get_accelerator_type(environ: Mapping[str, str] | None = None) -> AcceleratorType:
        """Return the vendor of this machine's visible accelerators."""
        return AcceleratorType(local_accelerators(environ)[0])

    @staticmethod
    def get_ccl_backend(vendor: AcceleratorType) -> str:
        """Back-end of ``torch.distributed`` for a vendor's tensors; ``gloo`` without one."""
        return TRAITS[vendor].ccl_backend if vendor in TRAITS else "gloo"

    @staticmethod
    def get_torch_device(vendor: AcceleratorType) -> str:
        """Device type of torch; ``cpu`` without accelerators."""
        return TRAITS[vendor].torch_device if vendor in TRAITS else "cpu"

    @staticmethod
    def get_visible_devices_variable(vendor: AcceleratorType) -> str | None:
        """Return the variable that selects devices; ``None`` without accelerators."""
        return TRAITS[vendor].visible_devices if vendor in TRAITS else None

    @staticmethod
    def get_socket_interface_variables(vendor: AcceleratorType) -> list[str]:
        """Return the variables that RLINF_COMM_NET_DEVICES is copied to."""
        traits = TRAITS.get(vendor)
        own = [traits.socket_interface] if traits and traits.socket_interface else []
        return ["GLOO_SOCKET_IFNAME", *own]

    @staticmethod
    def get_device_env(vendor: AcceleratorType, device_ids: Sequence[str]) -> dict[str, str]:
        """Environment that gives a worker exactly these devices.

        Args:
            vendor: Vendor of the node's accelerators; ``NO_ACCEL`` hides those of all vendors.
            device_ids: Ids as the node's visible-devices variable knows them.
        """
        env: dict[str, str] = {}
        for kind in [vendor] if vendor in TRAITS else TRAITS:
            traits = TRAITS[kind]
            env[traits.visible_devices] = ",".join(device_ids)
            if traits.ray_noset:
                env[traits.ray_noset] = "1"
        # EGL numbers devices by index, so an id that is a UUID says nothing to it.
        if vendor is AcceleratorType.NV_GPU and device_ids and device_ids[0].isdecimal():
            env["MUJOCO_EGL_DEVICE_ID"] = device_ids[0]
        return env
