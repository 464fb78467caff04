"""Makes sure that nothing which the cluster started outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any


def our_processes() -> list[Any]:
    """Descendants of this process that belong to Ray; a program may have others of its own."""
    import psutil

    return [process for process in psutil.Process().children(recursive=True) if _is_rays(process)]


def end_leftovers(processes: list[Any], timeout: float) -> None:
    """Waits for processes to end, then ends those that did not."""
    import psutil

    deadline = time.monotonic() + timeout
    while (alive := [process for process in processes if runs(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def kill_processes(pids: list[int]) -> None:
    """Kills processes of this machine; one that has ended meanwhile is left alone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def runs(process: Any) -> bool:
    """Whether a process runs; a zombie only waits for somebody else to reap it."""
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_rays(process: Any) -> bool:
    import psutil

    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return (
        "ray::" in line or "/ray/" in line or "ray-dashboard" in line or "default_worker.py" in line
    )
