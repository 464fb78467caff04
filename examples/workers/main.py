"""Two groups of workers: one draws random numbers, the other adds them up."""

from __future__ import annotations

import random

import hydra
from omegaconf import DictConfig

from rlinf.config import validate_cfg
from rlinf.scheduler import Cluster, HybridComponentPlacement, Scatter, Worker
from rlinf.scheduler.placement import format_placement_map


class Producer(Worker):
    """Draws random numbers."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._count = cfg.example.numbers_per_worker

    def produce(self, seed: int) -> list[int]:
        """Return whole numbers from 0 to 9, the same ones for the same seed."""
        with self.worker_timer("draw"):
            numbers = random.Random(seed).choices(range(10), k=self._count)
        self.log_info(f"drew {len(numbers)} numbers from seed {seed}")
        return numbers


class Summer(Worker):
    """Adds numbers up."""

    def total(self, numbers: list[int]) -> int:
        """Return the sum of numbers, of which there must be some."""
        if not numbers:
            raise ValueError("there is nothing to add")
        return sum(numbers)


def run(cfg: DictConfig, cluster: Cluster) -> int:
    """Draw numbers on all producers and add them up on all summers.

    Args:
        cfg: The checked config.
        cluster: Where to run.

    Returns:
        The sum.
    """
    placement = HybridComponentPlacement(cfg, cluster)
    print(format_placement_map(placement), flush=True)
    producers = Producer.create_group(cfg).launch(
        cluster, placement_strategy=placement.get_strategy("producer"), name="Producer"
    )
    summers = Summer.create_group().launch(
        cluster, placement_strategy=placement.get_strategy("summer"), name="Summer"
    )

    # A call on a group runs on all its ranks at once. Scatter gives each rank its own argument.
    seeds = [cfg.example.seed + rank for rank in range(producers.world_size)]
    drawing = producers.produce(Scatter(seeds))
    drawn = drawing.wait()
    for tag, seconds in drawing.consume_durations().items():
        print(f"slowest producer, {tag}: {seconds * 1000:.1f} ms")

    numbers = [number for part in drawn for number in part]
    shares = [numbers[rank :: summers.world_size] for rank in range(summers.world_size)]
    totals = summers.total(Scatter(shares)).wait()
    print(f"{len(numbers)} numbers, sums {' + '.join(map(str, totals))} = {sum(totals)}")

    # execute_on commands some ranks only.
    again = summers.execute_on(0).total(numbers).wait()
    print(f"rank 0 alone finds {again[0]}")

    # What a worker raises is raised here, from wait(), and can be caught like any exception.
    try:
        summers.total([]).wait()
    except ValueError as error:
        print(f"caught from a worker: {type(error).__name__}: {error}")
    return sum(totals)


@hydra.main(version_base="1.3", config_path="config", config_name="worker_groups")
def main(cfg: DictConfig) -> None:
    """Check the config, then run on a cluster that is gone again at the end."""
    cfg = validate_cfg(cfg)
    if cfg.runner.task_type != "workers":
        raise ValueError(f"this script runs task type workers, not {cfg.runner.task_type}")
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        run(cfg, cluster)
        print(f"logs of the workers: {cluster.log_dir}")
    print("done. Next: rlinf check worker_groups, or edit examples/workers/config")


if __name__ == "__main__":
    main()
