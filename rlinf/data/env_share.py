"""Which envs a rank of the rollout or the actor group deals with."""

from __future__ import annotations


def env_ids(
    total_envs: int, *, env_workers: int, stages: int, stage: int, ranks: int, rank: int
) -> list[int]:
    """Return the numbers, in the whole run, of the envs in a rank's share of a stage, in its order.

    Env worker w has the envs of stage s from (w · stages + s) · n on, n per worker and stage. The
    batch of a stage is that of worker 0, then of worker 1 and so on, cut into equal shares.

    Args:
        total_envs: envs of the run.
        env_workers: ranks of the env group.
        stages: pipeline stages.
        stage: which of them.
        ranks: ranks of the group that shares the batch.
        rank: which of them.
    """
    each = total_envs // (env_workers * stages)
    ids = [
        (worker * stages + stage) * each + slot
        for worker in range(env_workers)
        for slot in range(each)
    ]
    share = env_workers * each // ranks
    return ids[rank * share : (rank + 1) * share]
