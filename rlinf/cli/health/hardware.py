"""What does this machine have: GPUs, cores, memory, shared memory, disk?"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from rlinf.cli.health.finding import Finding, gib
from rlinf.utils.nvidia import NvidiaDriverError, NvidiaGpu, list_gpus

_CGROUP = Path("/sys/fs/cgroup")


def query_gpus(timeout: float = 20.0) -> tuple[list[NvidiaGpu], str]:
    """Ask the NVIDIA driver for its GPUs.

    Args:
        timeout: Seconds to wait for it.

    Returns:
        The GPUs, and what went wrong, empty if nothing did.
    """
    try:
        return list_gpus(timeout), ""
    except NvidiaDriverError as error:
        return [], str(error)


def check_gpu(gpus: list[NvidiaGpu], error: str) -> Finding:
    """Judge what `query_gpus` returned."""
    if error:
        return Finding(
            "gpu",
            "fail",
            f"there is an NVIDIA driver, but it does not work: {error}",
            "reload or reinstall the driver; in a container, start it with --gpus all",
        )
    if not gpus:
        return Finding("gpu", "ok", "none found: everything runs on the CPU")
    kinds = Counter(f"{gpu.name}, driver {gpu.driver}, {gib(gpu.memory_bytes)}" for gpu in gpus)
    return Finding("gpu", "ok", "; ".join(f"{count} x {kind}" for kind, count in kinds.items()))


def check_cores(cores: float | None = None) -> Finding:
    """Check the number of cores that this process may use."""
    cores = usable_cores() if cores is None else cores
    if cores < 2:
        return Finding(
            "cores", "warn", f"{cores:g}: workers wait for one another", "use at least 2 cores"
        )
    return Finding("cores", "ok", f"{cores:g}")


def check_memory(total: int | None = None, free: int | None = None) -> Finding:
    """Check the memory that this process may use."""
    import psutil

    memory = psutil.virtual_memory()
    limit = _cgroup_memory()
    total = min(memory.total, limit or memory.total) if total is None else total
    free = min(memory.available, total) if free is None else free
    text = f"{gib(free)} free of {gib(total)}"
    if free < 2 * 2**30:
        return Finding("memory", "warn", text, "close other programs: a small run needs 2 GiB")
    return Finding("memory", "ok", text)


def check_shared_memory(total: int | None = None, free: int | None = None) -> Finding:
    """Check /dev/shm, where Ray keeps its objects and data loaders keep their batches."""
    path = Path("/dev/shm")
    if total is None or free is None:
        if not path.is_dir():
            return Finding("shared memory", "fail", "there is no /dev/shm", "mount a tmpfs there")
        usage = shutil.disk_usage(path)
        total, free = usage.total, usage.free
    text = f"{gib(free)} free of {gib(total)} in /dev/shm"
    fix = "in a container: --shm-size=8g; else: mount -o remount,size=8G /dev/shm"
    if free < 256 * 2**20:
        return Finding("shared memory", "fail", text, fix)
    if free < 2 * 2**30:
        return Finding("shared memory", "warn", text, fix)
    return Finding("shared memory", "ok", text)


def check_disk(folder: Path, free: int | None = None) -> Finding:
    """Check the room for logs and checkpoints.

    Args:
        folder: Where they go; need not exist yet.
        free: Free bytes there; looked up by default.
    """
    existing = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", "fail", f"{existing} cannot be written", "set runner.logger.log_path elsewhere"
        )
    free = shutil.disk_usage(existing).free if free is None else free
    text = f"{gib(free)} free at {existing}"
    fix = "free space, or set runner.logger.log_path to another disk"
    if free < 2**30:
        return Finding("disk", "fail", text, fix)
    if free < 10 * 2**30:
        return Finding("disk", "warn", text, fix)
    return Finding("disk", "ok", text)


def usable_cores() -> float:
    """Return the cores that affinity and the container leave to this process."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def _cgroup_memory() -> int | None:
    try:
        text = (_CGROUP / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
