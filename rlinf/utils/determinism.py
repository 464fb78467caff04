"""Random numbers that belong to a name, and computation that is the same every time."""

from __future__ import annotations

import hashlib
import os
import random


def named_seed(seed: int, *names: str | int) -> int:
    """Return the seed of one role's own stream, at least 0 and below 2^63.

    Args:
        seed: of the run.
        *names: whose stream it is and what it is for, such as `"rollout", "noise", rank`. Streams
            of different names have nothing to do with each other.
    """
    text = "\0".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def be_deterministic(seed: int, *names: str | int) -> None:
    """Make this process compute the same whenever it is given the same.

    Seeds the generators that belong to the process (Python's, NumPy's, torch's), and lets torch use
    deterministic kernels only; an operation that has none raises. To be called before the first
    use of a GPU.

    Args:
        seed: of the run.
        *names: role and rank of this process.
    """
    import numpy as np
    import torch

    own = named_seed(seed, *names, "process")
    random.seed(own)
    np.random.seed(own % (1 << 32))
    torch.manual_seed(own)
    # cuBLAS reads it when it is first used; without it, matrix products raise.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # As use_deterministic_algorithms(True), but for loading the compiler, which takes seconds.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
