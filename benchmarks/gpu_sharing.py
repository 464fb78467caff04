"""Two groups of workers on one GPU: devices of each, and tensors handed over by CUDA IPC.

Run on a machine with at least one GPU:  python benchmarks/gpu_sharing.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlinf.scheduler import Cluster, HybridComponentPlacement, Worker, wait_all  # noqa: E402


class Holder(Worker):
    """Has a share of a GPU."""

    def facts(self) -> dict[str, str]:
        """Return what this worker sees of its devices."""
        import os

        import torch

        names = ["CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "ACCELERATOR_TYPE"]
        seen = {name: os.environ.get(name, "") for name in names}
        return seen | {
            "devices": str(torch.cuda.device_count()),
            "name": torch.cuda.get_device_name(0),
            "ids": str(self.global_accelerator_ids),
        }

    def hand_over(self, group: str, megabytes: int, count: int) -> list[float]:
        """Send GPU tensors, or receive them; return GB/s of each as the receiver sees it."""
        import torch

        speeds = []
        for i in range(count):
            if self._group_name == "actor":
                tensor = torch.full((megabytes << 18,), float(i), device="cuda")
                torch.cuda.synchronize()
                self.recv(group, 0)
                self.send(tensor, group, 0)
                self.recv(group, 0)
                del tensor
            else:
                self.send("ready", group, 0)
                begin = time.perf_counter()
                tensor = self.recv(group, 0)
                torch.cuda.synchronize()
                speeds.append((megabytes << 20) / (time.perf_counter() - begin) / 1e9)
                assert tensor.is_cuda and bool((tensor == float(i)).all())
                del tensor
                self.send("done", group, 0)
        return speeds

    def locked(self) -> tuple[float, float]:
        """Hold the device for a moment."""
        with self.device_lock:
            begin = time.time()
            time.sleep(0.3)
            return begin, time.time()


def main() -> None:
    """Run the checks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--count", type=int, default=10)
    args = parser.parse_args()
    cfg = {"cluster": {"num_nodes": 1, "component_placement": {"actor,rollout": "0"}}}
    with Cluster(cluster_cfg=cfg["cluster"]) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        actor, rollout = (
            Holder.create_group().launch(cluster, placement.get_strategy(name), name=name)
            for name in ("actor", "rollout")
        )
        for group in (actor, rollout):
            print(group.worker_group_name, group.facts().wait()[0])
        (a,), (b,) = wait_all(actor.locked(), rollout.locked())
        print("device lock serialises:", a[1] <= b[0] or b[1] <= a[0])
        for size in (1, 64, args.megabytes):
            _, (speeds,) = wait_all(
                actor.hand_over("rollout", size, args.count),
                rollout.hand_over("actor", size, args.count),
            )
            steady = speeds[2:]
            middle = statistics.median(steady)
            print(
                f"| {size} MB GPU to GPU, same device, worker to worker | {middle:.1f} GB/s "
                f"| {min(steady):.1f}-{max(steady):.1f} | {(size << 20) / middle / 1e3:.0f} us |"
            )


if __name__ == "__main__":
    main()
