"""The NVIDIA GPUs of this machine, as their driver lists them (NVML)."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

_DRIVER_FILES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""One of them exists where there is a driver; without any, NVML need not be loaded."""


class NvidiaGpu(NamedTuple):
    """A GPU.

    Attributes:
        index: its number at the driver, which `CUDA_VISIBLE_DEVICES` hides nothing from.
        uuid: its identity, as `CUDA_VISIBLE_DEVICES` takes it.
        name: its model.
        memory_bytes: size of its memory.
        driver: version of the driver.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    driver: str


class NvidiaDriverError(RuntimeError):
    """There is an NVIDIA driver, and it does not work."""


def list_gpus(timeout: float = 20.0) -> list[NvidiaGpu]:
    """List all GPUs of this machine; none if it has no NVIDIA driver.

    Args:
        timeout: seconds to wait for the driver, which may hang with a GPU that does not answer.

    Raises:
        NvidiaDriverError: the driver does not work, or did not answer in time.
    """
    if not any(map(os.path.exists, _DRIVER_FILES)):
        return []
    outcome: list[list[NvidiaGpu] | BaseException] = []

    def ask() -> None:
        try:
            outcome.append(_query())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=ask, name="rlinf-nvml", daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise NvidiaDriverError(f"it did not answer within {timeout:g} s")
    if isinstance(outcome[0], BaseException):
        raise NvidiaDriverError(str(outcome[0])) from outcome[0]
    return outcome[0]


def _query() -> list[NvidiaGpu]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        # A container that was given the devices alone.
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            gpus.append(NvidiaGpu(index, _text(uuid), _text(name), memory, driver))
        return gpus
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    # Older versions of the package return bytes.
    return value.decode() if isinstance(value, bytes) else value
