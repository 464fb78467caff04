"""Saved replay buffers as one npz file per episode, which any program reads and writes.

A file has, for T chunk steps of C actions: `obs/<name>` `[T, ...]`, `actions` `[T, C, ...]`,
`rewards` `[T, C]`, `terminated` and `truncated` (of the whole episode), and may have `valid` and
`intervened` `[T, C]`, `versions` `[T]`, `usable` `[T]`, `extras/<name>` `[T, ...]` and
`final/<name>`, the observation in which it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf.data.embodied import FinalObservations
from rlinf.data.replay import ReplayTrajectory, SavedShard, TrajectoryReplayBuffer, find_shards
from rlinf.data.replay.fields import Field, nest
from rlinf.data.replay.saved import FACTS, FINALS, FRAMES

NEEDED = ("actions", "rewards", "terminated", "truncated")


def export_episodes(folder: Path, out: Path) -> int:
    """Write the episodes of a saved buffer as npz files; return how many."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("episode_*.npz")):
        raise ValueError(f"{out} has episodes already; name another folder")
    count = 0
    for shard in find_shards(folder):
        if not shard.layouts:
            continue
        serials = np.arange(shard.state["begin"], shard.state["end"])
        numbers = shard.facts("episode")
        by_episode = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[by_episode])) + 1
        for rows in np.split(serials[by_episode], cuts):
            np.savez(out / f"episode_{count:06d}.npz", **_columns(shard, rows))
            count += 1
    return count


def import_episodes(folder: Path, out: Path) -> int:
    """Save npz files of episodes, in the order of their names, as a buffer; return how many.

    Raises:
        ValueError: a file lacks something; says which file and what.
    """
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise ValueError(f"{folder} has no npz files; each holds one episode")
    if (out / "rank_0").exists():
        raise ValueError(f"{out} has a saved buffer already; name another folder")
    trajectories = [_trajectory(file) for file in files]
    buffer = TrajectoryReplayBuffer(sum(len(trajectory) for trajectory in trajectories))
    buffer.add_trajectories(trajectories)
    buffer.save_checkpoint(out)
    return len(files)


def _columns(shard: SavedShard, rows: np.ndarray) -> dict[str, Any]:
    facts, finals = shard.table(FACTS), shard.table(FINALS)
    frames = shard.table(FRAMES)
    columns = {n: _plain(f, frames.gather(n, rows)) for n, f in shard.layouts[FRAMES].items()}
    for name in ("rewards", "valid", "intervened", "usable"):
        columns[name] = facts.gather(name, rows)
    columns["versions"] = facts.gather("version", rows)
    for name in ("terminated", "truncated"):
        columns[name] = facts.gather(name, rows[-1:])[0]
    final = facts.gather("final", rows[-1:])
    if final[0] >= 0:
        for name, field in shard.layouts[FINALS].items():
            place = "final" + name.removeprefix("obs")
            columns[place] = _plain(field, finals.gather(name, final))[0]
    return columns


def _plain(field: Field, array: np.ndarray) -> np.ndarray:
    """Return an array of a type that numpy has."""
    return field.tensor(array).float().numpy() if field.format == "BF16" else array


def _trajectory(file: Path) -> ReplayTrajectory:
    with np.load(file) as data:
        arrays = {name: torch.from_numpy(np.array(data[name])) for name in data.files}
    missing = [name for name in NEEDED if name not in arrays]
    if missing or not any(name.startswith("obs/") for name in arrays):
        raise ValueError(
            f"{file} lacks {', '.join(missing or ['obs/<name>'])}; an episode has obs/<name>, "
            f"{', '.join(NEEDED)}"
        )
    rewards = arrays["rewards"].float()
    if rewards.ndim != 2 or not len(rewards):
        raise ValueError(
            f"{file} has rewards of the shape {list(rewards.shape)}; they are [T, C]: steps, and "
            "actions of a chunk"
        )
    valid = arrays.get("valid", torch.ones_like(rewards, dtype=torch.bool)).bool()
    last = torch.zeros_like(valid)
    carried_out = valid[-1].nonzero()
    last[-1, int(carried_out[-1]) if len(carried_out) else -1] = True
    final = nest(arrays, "final")
    ends = torch.tensor([len(rewards) - 1])
    optional = {
        name: arrays[name][:, None]
        for name in ("intervened", "versions", "usable")
        if name in arrays
    }
    return ReplayTrajectory(
        obs=_with_env(nest(arrays, "obs")),
        actions=arrays["actions"][:, None],
        rewards=rewards[:, None],
        terminations=(last & bool(arrays["terminated"]))[:, None],
        truncations=(last & bool(arrays["truncated"]))[:, None],
        valid=valid[:, None],
        final=FinalObservations(ends, torch.tensor([0]), _row(final)) if final else None,
        extras=_with_env(nest(arrays, "extras")),
        **optional,
    )


def _with_env(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _with_env(value) for key, value in tree.items()}
    return tree[:, None]


def _row(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _row(value) for key, value in tree.items()}
    return tree[None]
