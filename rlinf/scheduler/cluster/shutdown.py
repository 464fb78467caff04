"""Makes sure that nothing which the cluster started outlives it."""

from __future__ import annotations

from typing import Any


def our_processes() -> list[Any]:
    """All descendants of this process."""
    import psutil

    return psutil.Process().children(recursive=True)


def end_leftovers(processes: list[Any], timeout: float) -> None:
    """Waits for processes to end, then ends those that did not.

    Only processes that Ray started are touched: a program may have children of its own.
    """
    import psutil

    ours = [process for process in processes if _is_rays(process)]
    _, alive = psutil.wait_procs(ours, timeout=timeout)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=5)


def _is_rays(process: Any) -> bool:
    import psutil

    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return (
        "ray::" in line or "/ray/" in line or "ray-dashboard" in line or "default_worker.py" in line
    )
