"""How long new weights take from the actor's process to the engine's, on one GPU."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu_parts.settings import TINY, Row, Settings, section_of
from rlinf.config import validate_cfg
from rlinf.scheduler import Cluster, HybridComponentPlacement, WorkerGroup, wait_all
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.rollout.generation_worker import GenerationWorker

WARM_UP, ROUNDS = 3, 10
AIM_MS = 20


class MeasuredActor(ReasoningActor):
    """The actor, which can leave checksums out."""

    def verify(self, wanted: bool) -> None:
        """Whether checksums go with the weights."""
        for sender in self._senders.values():
            sender._verify = wanted


def measure(settings: Settings) -> Iterator[Row]:
    """A row with checksums and one without."""
    shape = TINY if settings.tiny else settings.sizes[-1]
    with launched(shape, MeasuredActor, GenerationWorker) as (actor, rollout):
        for verify in (True, False):
            actor.verify(verify).wait()
            yield _timed(actor, rollout, f"{shape}, {'with' if verify else 'no'} checksums")


@contextlib.contextmanager
def launched(
    shape: str, actor_cls: type[ReasoningActor], rollout_cls: type[GenerationWorker]
) -> Iterator[tuple[WorkerGroup, WorkerGroup]]:
    """An actor and an engine's worker on one device, ready for updates."""
    cfg = config(shape)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        rollout, actor = (
            cls.create_group(cfg).launch(
                cluster, placement.get_strategy(role), name=cfg[role].group_name
            )
            for role, cls in (("rollout", rollout_cls), ("actor", actor_cls))
        )
        wait_all(rollout.init_worker(), actor.init_worker(1))
        yield actor, rollout


def update(actor: WorkerGroup, rollout: WorkerGroup) -> tuple[float, float, int]:
    """Bring the weights over once; when it began, when it ended, and bytes."""
    begin = time.perf_counter()
    receiving = rollout.sync_model_from_actor()
    (size,), _ = wait_all(actor.sync_model_to_rollout(), receiving)
    return begin, time.perf_counter(), size


def config(shape: str) -> Any:
    """Return a run with actor and engine on one device."""
    section = section_of(shape)
    on_the_way = None if section["precision"] == "fp32" else section["precision"]
    return validate_cfg(
        {
            "cluster": {"num_nodes": 1, "component_placement": {"actor,rollout,reward": "0"}},
            "runner": {"task_type": "reasoning", "max_steps": 1, "seq_length": 256},
            "algorithm": {"adv_type": "grpo", "loss_type": "actor", "group_size": 8},
            "data": {
                "max_prompt_length": 64,
                "rollout_batch_size": 8,
                "train_data_paths": ["none"],
            },
            "rollout": {"max_running_requests": 32, "gpu_memory_utilization": 0.4},
            "actor": {"model": section, "tokenizer": {"tokenizer_model": "characters"}},
            "reward": {"reward_type": "math"},
            "weight_syncer": {"bucket": {"bucket_dtype": on_the_way}},
        }
    )


def _timed(actor: Any, rollout: Any, what: str) -> Row:
    times, size = [], 0
    for _ in range(WARM_UP + ROUNDS):
        begin, end, size = update(actor, rollout)
        times.append(1e3 * (end - begin))
    middle = statistics.median(times[WARM_UP:])
    return {
        "what": what,
        "ms": round(middle, 2),
        "best ms": round(min(times[WARM_UP:]), 2),
        "first ms": round(times[0], 1),
        "GB": round(size / 1e9, 3),
        "GB/s": round(size / middle / 1e6, 1),
        "aim": f"< {AIM_MS} ms: {'met' if middle < AIM_MS else 'missed'}",
    }
