"""The environment variables by which a user sets the scheduler up."""

from __future__ import annotations

import os
from enum import Enum


class ClusterEnvVar(str, Enum):
    """Names of the variables, without the prefix `RLINF_`."""

    COMM_NET_DEVICES = "COMM_NET_DEVICES"
    """Network interface of torch's back-ends."""
    DEBUG = "DEBUG"
    """What is debugged: 0 nothing, 1 what is raised, inline the same with all in one process."""
    DEVICE_LINK = "DEVICE_LINK"
    """How tensors go between GPUs: nccl, gloo or off."""
    EXT_MODULE = "EXT_MODULE"
    """Module whose `register()` each process calls."""
    LOG_LEVEL = "LOG_LEVEL"
    """Least level that is logged."""
    NODE_RANK = "NODE_RANK"
    """Rank of a node, set before `ray start`."""
    PATH_ENV_MERGE_MODE = "PATH_ENV_MERGE_MODE"
    """Whether search paths of a worker are added to those of its node: append or override."""
    TRANSFER_MEMORY = "TRANSFER_MEMORY"
    """Most shared memory that transfers may take on a node."""

    @property
    def full_name(self) -> str:
        """The name with its prefix."""
        return f"RLINF_{self.value}"

    def get(self, default: str | None = None) -> str | None:
        """Return the value in this process, or a default."""
        return os.environ.get(self.full_name, default)
