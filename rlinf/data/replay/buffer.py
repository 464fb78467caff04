"""The replay buffer that learners use: rows go in by trajectory, and come out as batches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlinf.data.hashing import seed_of
from rlinf.data.replay.fields import naming, nest, row_bytes, to_array
from rlinf.data.replay.restoring import absorb, describe, restore
from rlinf.data.replay.returns import Discount, follow, stretch, sum_rewards
from rlinf.data.replay.sampling import Priorities, draw_uniform
from rlinf.data.replay.saved import (
    FACTS,
    FINALS,
    FORMAT,
    FRAMES,
    Rows,
    SavedShard,
    find_shards,
    join_shards,
    read_state,
    shard_folder,
)
from rlinf.data.replay.store import RowStore, StoreSettings, WorkingFolder
from rlinf.data.replay.trajectory import ReplayBatch, ReplayTrajectory, ReplayWindows
from rlinf.utils.checkpoint import save_tree

_AT_ONCE = 8 << 20
"""About how many bytes are drawn at a time for several batches."""


class TrajectoryReplayBuffer:
    """A ring of the newest transitions of one rank; adding and drawing may be in two threads.

    Args:
        capacity: most transitions.
        seed: of the draws; ranks draw differently.
        folder: working folder, of this buffer alone: what it held is removed. Segments are written
            there once and linked into checkpoints; without one, each checkpoint writes all rows.
        enable_cache: keep observations and actions in memory; false maps them from files in
            `folder`.
        auto_save: write segments into `folder` as soon as they are full, not when a checkpoint is
            made.
        sample_window_size: draw from so many newest transitions; None is all.
        min_buffer_size: drawable transitions from which `is_ready` is true.
        priorities: draw by priority; None draws uniformly.
        gamma: discount factor.
        discount_per: what it counts: steps of the env, or chunks of actions.
        n_step: rows that rewards are summed over.
        overwrite: drop the oldest transitions when full; false refuses more, as for
            demonstrations.
        rank: which shard this is.
        world_size: number of shards.
        segment_bytes: about how large segment files are.
    """

    def __init__(
        self,
        capacity: int,
        *,
        seed: int = 0,
        folder: str | Path | None = None,
        enable_cache: bool = True,
        auto_save: bool = False,
        sample_window_size: int | None = None,
        min_buffer_size: int = 1,
        priorities: Priorities | None = None,
        gamma: float = 0.99,
        discount_per: Literal["step", "chunk"] = "step",
        n_step: int = 1,
        overwrite: bool = True,
        rank: int = 0,
        world_size: int = 1,
        segment_bytes: int = 32 << 20,
    ) -> None:
        _at_least_one(
            capacity=capacity,
            sample_window_size=sample_window_size,
            min_buffer_size=min_buffer_size,
            n_step=n_step,
            segment_bytes=segment_bytes,
        )
        if folder is None and (auto_save or not enable_cache):
            raise ValueError(
                f"enable_cache is {enable_cache} and auto_save {auto_save}, but there is no "
                "folder; name one on a disk with room for the buffer"
            )
        self.capacity = capacity
        self.min_buffer_size = min_buffer_size
        self.n_step = n_step
        self.rank, self.world_size = rank, world_size
        self._seed = seed
        self._discount = Discount(gamma, discount_per)
        self._window = sample_window_size
        self._settings = StoreSettings(
            capacity, enable_cache, auto_save, overwrite, segment_bytes, priorities
        )
        self._work = None if folder is None else WorkingFolder(Path(folder))
        self._changed = threading.Condition(threading.RLock())
        self._store = self._empty_store()
        self._random = self._seeded()

    def _empty_store(self) -> RowStore:
        return RowStore(self._settings, None if self._work is None else self._work.path)

    def _seeded(self) -> np.random.Generator:
        return np.random.default_rng([self._seed, seed_of(self.rank, self.world_size)])

    # -- adding ---------------------------------------------------------------------------------

    def add_trajectories(self, trajectories: Sequence[ReplayTrajectory]) -> int:
        """Add the rows of trajectories, in this order.

        Returns:
            How many rows were added.

        Raises:
            ValueError: a trajectory does not fit the ones before, a truncated episode has no final
                observation, or the buffer is full and does not overwrite.
            ReplayDiskError: a file could not be written.
        """
        added = 0
        with self._changed:
            for trajectory in trajectories:
                added += self._store.add(trajectory.complete())
            self._changed.notify_all()
        return added

    # -- drawing --------------------------------------------------------------------------------

    def sample(self, num_chunks: int, n_step: int | None = None) -> ReplayBatch:
        """Draw transitions, with replacement: always as many as asked for.

        Args:
            num_chunks: how many.
            n_step: rows that rewards are summed over; None is that of the buffer.

        Raises:
            ValueError: nothing can be drawn yet.
        """
        _at_least_one(num_chunks=num_chunks, n_step=n_step)
        with self._changed:
            serials, weights = self._draw(num_chunks)
            return self._batch(serials, weights, n_step or self.n_step)

    def sample_batches(self, count: int, num_chunks: int) -> Iterator[ReplayBatch]:
        """Draw several batches; what `count` calls of `sample` would cost is shared by many.

        Args:
            count: batches.
            num_chunks: transitions of each.

        Yields:
            The batches, each as if drawn by `sample`. With priorities each is drawn when it is its
            turn, by the priorities of that moment.

        Raises:
            ValueError: nothing can be drawn yet.
        """
        at_once = 1
        if not self.prioritized and self._store.layouts:
            # An observation comes twice, as the next one of the row before it, too.
            size = 2 * row_bytes(self._store.layouts[FRAMES]) * num_chunks
            at_once = max(1, _AT_ONCE // max(1, size))
        for begin in range(0, count, at_once):
            batches = min(at_once, count - begin)
            yield from self.sample(batches * num_chunks).split(num_chunks)

    def sample_windows(self, count: int, length: int, whole: bool = False) -> ReplayWindows:
        """Draw stretches of consecutive rows of episodes.

        Args:
            count: how many.
            length: most rows of each.
            whole: only those that are no shorter.

        Raises:
            ValueError: nothing can be drawn yet, or no stretch is so long.
        """
        _at_least_one(count=count, length=length)
        with self._changed:
            serials, weights = self._draw(count)
            found = stretch(self._store.index, serials, length)
            if whole and not found.mask[:, -1].all():
                serials, weights = self._draw_whole(count, length)
                found = stretch(self._store.index, serials, length)
            return self._windows(found.serials, found.mask, weights)

    def update_priorities(self, indices: Tensor, priorities: Tensor) -> None:
        """Set the priorities of rows that were drawn; those dropped meanwhile are left out.

        Args:
            indices: of a batch, int64 `[n]`.
            priorities: such as absolute errors, `[n]`, 0 or more.
        """
        if self._store.sampler is None:
            raise ValueError("this buffer draws uniformly; make it with priorities=Priorities()")
        serials = to_array(indices).astype(np.int64)
        values = to_array(priorities).astype(np.float64)
        if values.shape != serials.shape or not np.isfinite(values).all() or (values < 0).any():
            raise ValueError(
                f"priorities have the shape {list(values.shape)} for {list(serials.shape)} "
                "indices; they are finite numbers, 0 or more, one for each"
            )
        with self._changed:
            index = self._store.index
            here = (serials >= index.begin) & (serials < index.end)
            here[here] = index.drawable(serials[here])
            self._store.sampler.update(serials[here], values[here])

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        index = self._store.index
        begin = index.begin if self._window is None else max(index.begin, index.end - self._window)
        drawable = index.num_drawable
        if drawable and begin > index.begin:
            drawable = index.count_drawable(begin)
        if not drawable:
            raise ValueError(
                f"nothing can be drawn: the buffer has {len(self)} transitions, and the next "
                "observation of none of those in its window is known yet; wait until is_ready()"
            )
        if self._store.sampler is not None:
            return self._store.sampler.draw(self._random, begin, index.end, count)
        serials = draw_uniform(self._random, index, begin, index.end, count)
        return serials, np.ones(count, np.float32)

    def _draw_whole(self, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows that so many others follow: by trial, or from a list where they are rare."""
        serials, weights = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for _ in range(8):
            more, of_more = self._draw(2 * count)
            long = stretch(self._store.index, more, length).mask[:, -1]
            serials = np.concatenate([serials, more[long]])
            weights = np.concatenate([weights, of_more[long]])
            if len(serials) >= count:
                # Draws by priority come in the order of the ring: take none of its ends only.
                chosen = self._random.permutation(len(serials))[:count]
                return serials[chosen], weights[chosen]
        begin = self._store.index.begin
        if self._window is not None:
            begin = max(begin, self._store.index.end - self._window)
        rows = np.arange(begin, self._store.index.end)
        rows = rows[self._store.index.drawable(rows)]
        ends = rows
        for _ in range(length - 1):
            ends, on = follow(self._store.index, ends)
            rows, ends = rows[on], ends[on]
        if not len(rows):
            raise ValueError(
                f"no episode has {length} consecutive transitions that can be drawn; ask for "
                "shorter windows, or for padded ones with whole=False"
            )
        chances = None if self._store.sampler is None else self._store.sampler.leaves(rows)
        if chances is None:
            return rows[self._random.integers(0, len(rows), count)], np.ones(count, np.float32)
        chosen = self._random.choice(len(rows), count, p=chances / chances.sum())
        return rows[chosen], self._store.sampler.weights(rows[chosen])

    def _batch(self, serials: np.ndarray, weights: np.ndarray, n_step: int) -> ReplayBatch:
        facts = self._store.tables[FACTS]
        sums = sum_rewards(facts, self._store.index, serials, n_step, self._discount)
        frames = self._store.frames(serials)
        return ReplayBatch(
            obs=nest(frames, "obs"),
            actions=frames["actions"],
            rewards=torch.from_numpy(sums.rewards.astype(np.float32)),
            next_obs=nest(self._store.next_observations(sums.last), "obs"),
            discounts=torch.from_numpy(sums.discounts.astype(np.float32)),
            terminations=self._fact_tensor("terminated", sums.last),
            truncations=self._fact_tensor("truncated", sums.last),
            steps=torch.from_numpy(sums.steps),
            valid=self._fact_tensor("valid", serials),
            intervened=self._fact_tensor("intervened", serials),
            versions=self._fact_tensor("version", serials),
            extras=nest(frames, "extras"),
            indices=torch.from_numpy(serials),
            weights=torch.from_numpy(weights),
        )

    def _windows(self, rows: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> ReplayWindows:
        count, length = rows.shape
        flat = rows.reshape(-1)
        frames = {
            name: v.unflatten(0, (count, length)) for name, v in self._store.frames(flat).items()
        }
        facts = {
            name: self._fact_tensor(name, flat).unflatten(0, (count, length))
            for name in ("terminated", "truncated", "valid", "intervened", "version")
        }
        chunks = self._discount.chunk(
            self._store.fact("rewards", flat), self._store.fact("valid", flat)
        )
        rewards, discounts = (
            torch.from_numpy(v.astype(np.float32)).unflatten(0, (count, length)) for v in chunks
        )
        # Where a window is over, its last row is repeated; what is seen there is what came of it.
        after = torch.from_numpy(~mask)
        last = self._store.next_observations(rows[:, -1])
        observed = {}
        for name in self._store.layouts[FINALS]:
            observed[name] = torch.cat([frames[name], last[name][:, None]], 1)
            where = torch.cat([after, torch.ones(count, 1, dtype=torch.bool)], 1)
            env, place = where.nonzero(as_tuple=True)
            observed[name][env, place] = last[name][env]
        return ReplayWindows(
            obs=nest(observed, "obs"),
            actions=frames["actions"],
            rewards=rewards,
            discounts=discounts,
            terminations=facts["terminated"],
            truncations=facts["truncated"],
            valid=facts["valid"],
            intervened=facts["intervened"],
            versions=facts["version"],
            extras=nest(frames, "extras"),
            mask=torch.from_numpy(mask),
            indices=torch.from_numpy(rows),
            weights=torch.from_numpy(weights),
        )

    def _fact_tensor(self, name: str, serials: np.ndarray) -> Tensor:
        return torch.from_numpy(self._store.fact(name, serials))

    # -- what is in it --------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._store.index.end - self._store.index.begin

    @property
    def num_drawable(self) -> int:
        """Transitions that can be drawn: those whose next observation is known."""
        return self._store.index.num_drawable

    @property
    def prioritized(self) -> bool:
        """Whether draws go by priority."""
        return self._store.sampler is not None

    @property
    def total_samples(self) -> int:
        """Transitions that are here now."""
        return len(self)

    def is_ready(self, min_size: int | None = None) -> bool:
        """Return whether so many transitions can be drawn; None is `min_buffer_size`."""
        return self.num_drawable >= (self.min_buffer_size if min_size is None else min_size)

    def wait_until_ready(self, min_size: int | None = None, timeout: float | None = None) -> bool:
        """Wait until another thread has added enough; return whether it has in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_ready(min_size), timeout)

    def float_observations(self) -> dict[str, Any]:
        """Return the observations of all transitions, without pictures and the like.

        Returns:
            Nested as they were put in, `[n, ...]` each.
        """
        with self._changed:
            store = self._store
            rows = np.arange(store.index.begin, store.index.end)
            columns = {
                name: field.tensor(store.tables[FRAMES].gather(name, rows))
                for name, field in store.layouts[FRAMES].items()
                if field.is_float
            }
            return nest(columns, "obs")

    def get_stats(self) -> dict[str, int]:
        """Return counts for metrics."""
        with self._changed:
            return {
                "num_trajectories": self._store.index.num_episodes,
                "total_samples": len(self),
                "drawable_samples": self.num_drawable,
                "added_samples": self._store.index.end,
                "cache_size": self.capacity,
            }

    def clear(self) -> None:
        """Forget all transitions."""
        with self._changed:
            self._store.close()
            if self._work is not None:
                self._work.empty()
            self._store = self._empty_store()

    def close(self) -> None:
        """Let go of memory and of the working folder, whose files are removed."""
        with self._changed:
            self._store.close()
            if self._work is not None:
                self._work.close()
                self._work = None
            self._store = self._empty_store()

    # -- checkpoints ----------------------------------------------------------------------------

    def save_checkpoint(self, folder: str | Path) -> None:
        """Save the shard of this rank into a folder that all ranks share.

        Raises:
            ReplayDiskError: a file could not be written; says which.
        """
        self.snapshot(folder)()

    def snapshot(self, folder: str | Path) -> Callable[[], None]:
        """Fix the state of this moment for a checkpoint; the buffer may go on at once.

        Args:
            folder: of the checkpoint.

        Returns:
            What writes the rest of it, in any thread.
        """
        target = shard_folder(folder, self.rank)
        with self._changed, naming(target):
            if target.exists():
                shutil.rmtree(target)
            target.mkdir(parents=True)
        with self._changed:
            state = {
                "format": FORMAT,
                "rank": self.rank,
                "world_size": self.world_size,
                "random": self._random.bit_generator.state,
                **describe(self._store),
            }
            writers = {name: table.snapshot(target) for name, table in self._store.tables.items()}

        def write() -> None:
            for name, writer in writers.items():
                state["tables"][name]["files"] = writer()
            with naming(target / "state.json"):
                save_tree(target / "state", state)

        return write

    def load_checkpoint(
        self, folder: str | Path, *, verify: bool = True, demonstrations: bool = False
    ) -> list[str]:
        """Take the rows of a saved buffer instead of those here.

        A buffer that as many ranks saved comes back exactly: the next draws are those that the
        saved one would have made. Else the episodes of all shards are shared out among the ranks.

        Args:
            folder: where all ranks saved.
            verify: compare the checksum of each file.
            demonstrations: share out episodes and draw from the own seed in any case.

        Returns:
            In words, what is not as it was saved.

        Raises:
            ReplayDamaged: a file is missing or damaged; says which.
            ValueError: the rows do not fit a buffer that does not overwrite.
        """
        ranks = read_state(shard_folder(folder, 0))["world_size"]
        exact = ranks == self.world_size and not demonstrations
        with self._changed:
            if exact:
                found = [SavedShard.open(shard_folder(folder, self.rank), verify)]
            else:
                found = find_shards(folder, verify)
            self.clear()
            self._random = self._seeded()
            try:
                notes = self._take(found[0]) if exact else self._share(found)
            except BaseException:
                # Half a buffer is none.
                self.clear()
                raise
            self._changed.notify_all()
        return [] if demonstrations else notes

    def _take(self, shard: SavedShard) -> list[str]:
        self._random.bit_generator.state = shard.state["random"]
        return restore(self._store, shard)

    def _share(self, shards: Sequence[SavedShard]) -> list[str]:
        notes = absorb(self._store, join_shards(shards, self.rank, self.world_size))
        return [
            *notes,
            f"the draws of the replay buffer, which {len(shards)} ranks saved and "
            f"{self.world_size} load",
        ]

    def absorb(self, rows: Rows) -> list[str]:
        """Add rows of saved shards; see `load_checkpoint` for what is returned and raised."""
        with self._changed:
            notes = absorb(self._store, rows)
            self._changed.notify_all()
        return notes


def _at_least_one(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it is 1 or more")
