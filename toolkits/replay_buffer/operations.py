"""What can be done with saved replay buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.replay import TrajectoryReplayBuffer, find_shards
from rlinf.data.replay.saved import FRAMES, Rows, join_shards


def describe(folder: Path) -> dict[str, Any]:
    """Return what is in a saved buffer."""
    shards = find_shards(folder)
    rows = Rows(shards)
    about: dict[str, Any] = {
        "shards": len(shards),
        "transitions": len(rows),
        "episodes": rows.num_episodes,
        "bytes": sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()),
    }
    if not rows.layouts:
        return about
    rewards = np.where(rows.facts("valid"), rows.facts("rewards"), 0).sum(1, np.float64)
    returns = np.bincount(rows.episodes, rewards, rows.num_episodes)
    lengths = np.bincount(rows.episodes, minlength=rows.num_episodes)
    about |= {
        "terminated": int(rows.facts("terminated").sum()),
        "truncated": int(rows.facts("truncated").sum()),
        "intervened": int(rows.facts("intervened").any(1).sum()),
        "versions": [int(rows.facts("version").min()), int(rows.facts("version").max())],
        "mean_length": float(lengths.mean()),
        "mean_return": float(returns.mean()),
        "columns": {
            name: f"{field.format} {list(field.shape)}"
            for name, field in rows.layouts[FRAMES].items()
        },
    }
    return about


def merge(folders: Sequence[Path], out: Path, ranks: int = 1) -> int:
    """Join saved buffers into one; return how many transitions it has.

    Args:
        folders: the buffers.
        out: where the new one is saved.
        ranks: shards of the new one.
    """
    shards = [shard for folder in folders for shard in find_shards(folder)]
    return _save(lambda rank: join_shards(shards, rank, ranks), out, ranks)


def trim(folder: Path, out: Path, transitions: int | None, episodes: int | None) -> int:
    """Save the newest part of a buffer as a new one; return how many transitions it has.

    Args:
        folder: the buffer.
        out: where the new one is saved.
        transitions: most transitions; None is all.
        episodes: most episodes; None is all.
    """
    rows = Rows(find_shards(folder))
    if episodes is not None:
        last = np.zeros(rows.num_episodes, np.int64)
        np.maximum.at(last, rows.episodes, np.arange(len(rows)))
        kept = np.argsort(last, kind="stable")[max(0, len(last) - episodes) :]
        rows.keep(np.isin(rows.episodes, kept))
    if transitions is not None:
        rows.keep(np.arange(len(rows)) >= len(rows) - transitions)
    return _save(lambda rank: rows, out, 1)


def _save(share: Callable[[int], Rows], out: Path, ranks: int) -> int:
    """Save the rows of each rank; segments go through the disk, so any size does."""
    if (out / "rank_0").exists():
        raise ValueError(f"{out} has a saved buffer already; name another folder")
    total = 0
    for rank in range(ranks):
        rows = share(rank)
        buffer = TrajectoryReplayBuffer(
            max(1, len(rows)),
            folder=out / f".rank_{rank}",
            enable_cache=False,
            rank=rank,
            world_size=ranks,
        )
        buffer.absorb(rows)
        buffer.save_checkpoint(out)
        buffer.close()
        (out / f".rank_{rank}" / "lock").unlink()
        (out / f".rank_{rank}").rmdir()
        total += len(rows)
    return total
