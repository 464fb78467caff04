"""How many threads torch has in a worker that computes on the CPU."""

from __future__ import annotations

import os
from typing import Any

import torch


def use_cores(cfg: Any, device: torch.device) -> None:
    """Give a worker of a language model its share of the cores of its node.

    Ray allows one thread to each worker, whatever the machine has. Here the workers of a group
    share all cores. Actor and rollout take turns, so each of them counts on all; unless the config
    has them work at the same time, in which case each counts on half.

    OMP_NUM_THREADS, if it is more than 1, is what the user wants, and stays.

    Args:
        cfg: the configuration.
        device: where the worker computes; on others than a CPU nothing is changed.
    """
    if device.type != "cpu" or os.environ.get("OMP_NUM_THREADS", "1") != "1":
        return
    # An evaluation may have no actor to share with.
    streams = cfg.actor is not None and cfg.actor.stream_groups > 0
    overlaps = cfg.algorithm.max_policy_age > 0 or streams
    torch.set_num_threads(threads(len(os.sched_getaffinity(0)), _workers_here(), overlaps))


def threads(cores: int, workers: int, overlaps: bool) -> int:
    """Return a worker's share of the cores of a node.

    Args:
        cores: of the node.
        workers: of the group, on this node.
        overlaps: whether another group computes at the same time.
    """
    return max(1, cores // workers // (2 if overlaps else 1))


def _workers_here() -> int:
    return int(os.environ.get("NODE_LOCAL_WORLD_SIZE", "1"))
