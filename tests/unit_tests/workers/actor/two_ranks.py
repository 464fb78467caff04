"""Two ranks of a process group, without a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from rlinf.scheduler.worker.ports import free_port

MODULES = [
    "torch.distributed.fsdp",
    "torch._dynamo",
    "rlinf.workers.actor.reasoning_actor",
    "transformers.modeling_utils",
    "pyarrow.parquet",
]
"""What takes seconds to import, and what optimisers and policies import when they are made."""


def run_two_ranks(function: Callable[[int], Any], folder: Path) -> list[Any]:
    """What a function of the rank returns on each of two ranks."""
    forkserver.set_forkserver_preload(MODULES)
    # Not one that the kernel gives to connections: one might have it before the ranks meet there.
    port = free_port()
    mp.start_processes(_run, (function, port, folder), nprocs=2, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def _run(rank: int, function: Callable[[int], Any], port: int, folder: Path) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.save(function(rank), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
