"""The most memory that a process has taken, on its host and on its accelerator."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from rlinf.scheduler.torch_device import torch_device_type, torch_platform

PeakMemory = dict[str, int]
"""Bytes: `host`, and `device` in processes that have used an accelerator."""


def peak_memory() -> PeakMemory:
    """Return the most memory that this process has taken so far.

    `host` is resident memory, shared memory that it has touched included. `device` is what the
    allocator of torch has reserved, without the context of the driver.
    """
    out = {"host": _resident()}
    if torch_device_type() != "cpu" and "torch" in sys.modules:
        platform = torch_platform()
        if platform.is_initialized():
            out["device"] = platform.max_memory_reserved()
    return out


def _resident() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    # Bytes on macOS, where there is no /proc.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def largest_by_group(peaks: Mapping[str, PeakMemory]) -> dict[str, PeakMemory]:
    """Return the largest worker of each group.

    Args:
        peaks: by worker, as from `Cluster.peak_memory`.
    """
    out: dict[str, PeakMemory] = {}
    for worker, peak in peaks.items():
        group = out.setdefault(worker.partition(":")[0], {})
        for place, count in peak.items():
            group[place] = max(group.get(place, 0), count)
    return out
