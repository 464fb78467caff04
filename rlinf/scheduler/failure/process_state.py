"""States of processes of this node, and how many the kernel has killed for memory."""

from __future__ import annotations

from pathlib import Path


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory."""
    total = 0
    for path, key in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        try:
            for line in Path(path).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    total += int(value)
        except (OSError, ValueError):
            continue
    return total


def is_stopped(pid: int) -> bool:
    """Return whether a process has been stopped by a signal."""
    return _state_letter(pid) == "T"


def process_state(pid: int) -> str:
    """State of a process in words, empty if it is gone."""
    letter = _state_letter(pid)
    return {
        "": "",
        "R": "running",
        "S": "sleeping",
        "D": "waiting for a device",
        "T": "stopped by a signal",
    }.get(letter, "gone" if letter in "ZX" else letter)


def _state_letter(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
