"""What a node says of itself: hardware, environment, interpreter. Runs on the node."""

from __future__ import annotations

import os
import sys
from typing import Any

from rlinf.scheduler.cluster.interfaces import comm_addresses
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.failure.process_state import oom_kills


def probe_node() -> dict[str, Any]:
    """Return the facts of the node that this runs on, as plain data."""
    from rlinf.scheduler.hardware import enumerate_hardware

    return {
        # Whoever has the token of Ray may do anything: it stays where it is.
        "env": {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN"},
        "python": sys.executable,
        "num_cpus": os.cpu_count() or 1,
        "node_rank": ClusterEnvVar.NODE_RANK.get(),
        "hardware": enumerate_hardware(0),
        "oom_kills": oom_kills(),
        "comm_ips": comm_addresses(),
    }
