"""What a run is told: by the `cluster` section, by arguments, and by variables."""

from __future__ import annotations

from rlinf.config.port_range import parse_port_range
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.errors import ClusterError

DEFAULT_TIMEOUTS: dict[str, float | None] = {
    "nodes": 300.0,
    "launch": 300.0,
    "registry": 60.0,
    "call": None,
    "recv": 1800.0,
    "channel": 1800.0,
    "lock": 1800.0,
    "reconnect": 10.0,
    "shutdown": 20.0,
}
"""Seconds of each kind of wait, where `cluster.timeouts` says nothing; None is no deadline."""


def node_count(asked: int | None, given: int | None) -> int:
    """Return the number of nodes of a run; 0 is all that there are.

    Args:
        asked: by the program.
        given: by `cluster.num_nodes`.

    Raises:
        ClusterError: the two contradict each other.
    """
    if asked is not None and given is not None and asked != given:
        raise ClusterError(f"num_nodes={asked} contradicts cluster.num_nodes={given}")
    if asked is not None:
        return asked
    return 1 if given is None else given


def port_limits(given: str | None) -> tuple[int, int] | None:
    """Return the lowest and the highest port that processes listen on; None is any.

    Raises:
        ClusterError: it is no range of ports.
    """
    if given is None:
        return None
    try:
        allowed = parse_port_range(given)
    except ValueError as error:
        raise ClusterError(f"cluster.port_range: {error}") from None
    return allowed[0], allowed[-1]


def debug_mode() -> str:
    """Return what the user wants: "0", "1" (post-mortem), or "inline" (all in this process).

    Raises:
        ClusterError: it is something else.
    """
    mode = ClusterEnvVar.DEBUG.get("0") or "0"
    if mode not in ("0", "1", "inline"):
        raise ClusterError(f"RLINF_DEBUG={mode!r}; allowed: 0, 1, inline")
    return mode
