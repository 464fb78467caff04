"""The accelerators of this machine, seen without torch and at no cost where there are none."""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlinf.utils.nvidia import NvidiaDriverError, list_gpus

NO_ACCELERATOR = "NO_ACCEL"


@dataclass(frozen=True)
class LocalDevice:
    """One accelerator that this process may use."""

    device_id: str
    """What to write into the vendor's visible-devices variable to select it."""
    model: str
    uuid: str = ""


def local_accelerators(
    environ: Mapping[str, str] | None = None,
) -> tuple[str, tuple[LocalDevice, ...]]:
    """Return the vendor of this machine's accelerators and those that are visible.

    Args:
        environ: Environment whose visible-devices variable counts; this process's by default.

    Returns:
        Vendor name (``NV_GPU``, ...) and devices; ``("NO_ACCEL", ())`` without any.
    """
    environ = os.environ if environ is None else environ
    for vendor, (variable, _) in VENDORS.items():
        devices = _visible(installed_devices(vendor), environ.get(variable))
        if devices:
            return vendor, devices
    return NO_ACCELERATOR, ()


@functools.cache
def installed_devices(vendor: str) -> tuple[LocalDevice, ...]:
    """Return all devices of a vendor, whatever the environment hides."""
    return tuple(VENDORS[vendor][1]())


def _visible(devices: tuple[LocalDevice, ...], selection: str | None) -> tuple[LocalDevice, ...]:
    """Return the devices a visible-devices variable selects, as the vendors' drivers read it.

    Device ids stay as written, so that they can be written back into the variable of a worker.
    Drivers ignore everything from the first id that does not exist.
    """
    if selection is None:
        return devices
    chosen: list[LocalDevice] = []
    for device_id in (part.strip() for part in selection.split(",")):
        if device_id.isdecimal() and int(device_id) < len(devices):
            device = devices[int(device_id)]
        else:
            named = [d for d in devices if device_id and d.uuid.startswith(device_id)]
            if len(named) != 1:
                break
            device = named[0]
        chosen.append(LocalDevice(device_id, device.model, device.uuid))
    return tuple(chosen)


def _nvidia() -> list[LocalDevice]:
    try:
        devices = [LocalDevice(str(gpu.index), gpu.name, gpu.uuid) for gpu in list_gpus()]
    except NvidiaDriverError as error:
        warnings.warn(f"the NVIDIA driver does not work: {error}", stacklevel=2)
        devices = []
    if devices:
        return devices
    # Slim containers have the devices but not the driver's library.
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        with open(path, encoding="utf-8", errors="replace") as file:
            facts = dict(re.findall(r"^([^:\n]+):\s*(.*?)\s*$", file.read(), re.MULTILINE))
        model, uuid = facts.get("Model", "NVIDIA GPU"), facts.get("GPU UUID", "")
        devices.append(LocalDevice(str(len(devices)), model, uuid))
    return devices or _numbered("/dev/nvidia[0-9]*", "NVIDIA GPU")


def _amd() -> list[LocalDevice]:
    # The kernel lists the graphics part of a laptop's processor too; ROCm must be there as well.
    if not (shutil.which("rocm-smi") or shutil.which("amd-smi")):
        return []
    ids = []
    for path in sorted(glob.glob("/sys/class/kfd/kfd/topology/nodes/*/gpu_id")):
        with open(path, encoding="utf-8") as file:
            ids.append(file.read().strip())
    gpus = [gpu for gpu in ids if gpu not in ("", "0")]
    return [LocalDevice(str(i), "AMD GPU") for i in range(len(gpus))]


def _intel() -> list[LocalDevice]:
    # Only xpu-smi tells data-centre GPUs from the graphics part of a processor.
    listing = _run("xpu-smi", "discovery", "--dump", "1,2")
    rows = re.findall(r'^\s*"?(\d+)"?,\s*"?([^"\n]+)"?', listing, re.MULTILINE)
    return [LocalDevice(index, model.strip()) for index, model in rows]


def _numbered(pattern: str, model: str) -> list[LocalDevice]:
    return [LocalDevice(str(i), model) for i in range(len(glob.glob(pattern)))]


def _run(*command: str) -> str:
    """Output of a command; ``""`` if it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


VENDORS: dict[str, tuple[str, Callable[[], list[LocalDevice]]]] = {
    "NV_GPU": ("CUDA_VISIBLE_DEVICES", _nvidia),
    "AMD_GPU": ("HIP_VISIBLE_DEVICES", _amd),
    "INTEL_GPU": ("ZE_AFFINITY_MASK", _intel),
    "NPU": (
        "ASCEND_RT_VISIBLE_DEVICES",
        lambda: _numbered("/dev/davinci[0-9]*", "Ascend NPU"),
    ),
    "MUSA": ("MUSA_VISIBLE_DEVICES", lambda: _numbered("/dev/mtgpu.[0-9]*", "Moore Threads GPU")),
}
"""Visible-devices variable of each vendor, and how to list its devices."""
