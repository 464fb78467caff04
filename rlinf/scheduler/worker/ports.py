"""Free ports of this node."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

_HIGHEST_PORT = 65535
_LOWEST_PORT = 20000
"""Below are the ports of Ray's workers, and those of well-known services."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def port_choices(highest: int = _HIGHEST_PORT) -> range:
    """Return the ports that the kernel gives to nobody who does not ask for that very one.

    Args:
        highest: the highest port allowed.
    """
    try:
        low, high = map(int, _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    below = range(_LOWEST_PORT, min(low, highest + 1))
    above = range(high + 1, highest + 1)
    return below if len(below) >= len(above) else above


def free_port(highest: int | None = None, allowed: tuple[int, int] | None = None) -> int:
    """Return a port that is free at this moment and that no outgoing connection takes meanwhile.

    Args:
        highest: the highest port allowed; None is 65535.
        allowed: lowest and highest port of `cluster.port_range`, if there is one.

    Raises:
        ValueError: the limits leave no port to choose from.
    """
    lowest = _LOWEST_PORT if allowed is None else allowed[0]
    if highest is not None and not lowest <= highest <= _HIGHEST_PORT:
        raise ValueError(
            f"max_port_num={highest} is not possible: ports are taken from {lowest} to "
            f"{_HIGHEST_PORT if allowed is None else allowed[1]}"
        )
    most = _HIGHEST_PORT if highest is None else highest
    if allowed is None:
        choices = port_choices(most)
    else:
        choices = range(allowed[0], min(allowed[1], most) + 1)
    for _ in range(len(choices)):
        # Not `random`, which a program may seed alike in all of its processes.
        port = choices[secrets.randbelow(len(choices))]
        if _is_free(port):
            return port
    if highest is not None or allowed is not None:
        raise ValueError(f"no port of {choices[0]} to {choices[-1]} is free on this node")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # All ports are the kernel's to give away.
        sock.bind(("", 0))
        return sock.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True
