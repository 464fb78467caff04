"""Plain Ray, for `benchmarks.hosts`: an array to an actor on another node.

`hosts_ray.py SIZE COUNT` prints the seconds of each transfer as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
class Taker:
    """Takes arrays."""

    def take(self, message: np.ndarray) -> int:
        """Take one."""
        return len(message)


def main() -> None:
    """Send arrays to the other node."""
    size, count = map(int, sys.argv[1:])
    ray.init(logging_level="ERROR")
    here = ray.get_runtime_context().get_node_id()
    there = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here)
    place = NodeAffinitySchedulingStrategy(there, soft=False)
    taker = Taker.options(scheduling_strategy=place).remote()
    message = np.ones(size, np.uint8)
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        reference = ray.put(message)
        assert ray.get(taker.take.remote(reference)) == size
        seconds.append(time.perf_counter() - begin)
        del reference
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
