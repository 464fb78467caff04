"""Which row follows which, and which rows can be drawn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

_NONE = np.iinfo(np.int64).max


class Added(NamedTuple):
    """What the index says of new rows.

    Attributes:
        episodes: number of the episode of each, int64 `[n]`.
        drawable: serials of rows, new or old, that can be drawn from now on.
    """

    episodes: np.ndarray
    drawable: np.ndarray


class EpisodeIndex:
    """Links between the rows of episodes, by serial, for the rows `begin` to `end`.

    A stream is an env whose episodes go on from one trajectory to the next.

    Args:
        capacity: most rows.

    Attributes:
        begin: serial of the oldest row.
        end: serial of the next row.
        num_drawable: rows that can be drawn.
        num_episodes: episodes that have a row here.
        next_episode: number of the next episode.
        streams: episode and last row of each stream whose episode has not ended.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._next = np.full(capacity, -1, np.int64)
        self._usable = np.zeros(capacity, bool)
        self._drawable = np.zeros(capacity, bool)
        self.begin = self.end = 0
        self.num_drawable = self.num_episodes = self.next_episode = 0
        self.streams: dict[Hashable, tuple[int, int]] = {}

    def next(self, serials: np.ndarray) -> np.ndarray:
        """Return the row after each in its episode, -1 where there is none yet."""
        return self._next[serials % self._capacity]

    def drawable(self, serials: np.ndarray) -> np.ndarray:
        """Return which rows have a known successor or end, and are usable."""
        return self._drawable[serials % self._capacity]

    def count_drawable(self, begin: int) -> int:
        """Return how many rows from a serial on can be drawn."""
        first, last = begin % self._capacity, self.end % self._capacity
        if begin >= self.end:
            return 0
        if first < last:
            return int(np.count_nonzero(self._drawable[first:last]))
        parts = self._drawable[first:], self._drawable[:last]
        return sum(int(np.count_nonzero(part)) for part in parts)

    def add(
        self,
        kept: np.ndarray,
        begins: np.ndarray,
        ended: np.ndarray,
        usable: np.ndarray,
        streams: Sequence[Hashable] | None,
    ) -> Added:
        """Number and link the rows of a trajectory, in order of time, then env.

        Args:
            kept: which steps are rows, bool `[T, B]`.
            begins: which begin an episode, bool `[T, B]`.
            ended: which end one, bool `[T, B]`.
            usable: which may be drawn, bool `[T, B]`.
            streams: name of the stream of each env; None if episodes do not go on.
        """
        envs, first, count = kept.shape[1], self.end, int(kept.sum())
        serials = np.full(kept.shape, _NONE, np.int64)
        serials[kept] = first + np.arange(count)
        # Rows of an env are of one episode if none has begun or ended between them.
        ends = (ended & kept).astype(np.int64)
        stretch = begins.cumsum(0) + ends.cumsum(0) - ends
        open_ = self._open_streams(streams, envs)
        episodes = self._number(kept, stretch, open_)
        self.end += count

        following = np.full((len(kept) + 1, envs), _NONE, np.int64)
        following[:-1] = np.minimum.accumulate(serials[::-1], 0)[::-1]
        successor = following[1:][kept]
        known = successor < _NONE
        same = known.copy()
        same[known] = episodes[successor[known] - first] == episodes[known]
        new = first + np.arange(count)
        self._set(new, np.where(same, successor, -1), usable[kept], ended[kept])

        old = self._join(open_, following[0], episodes, first)
        self._remember(streams, serials, stretch, ended, episodes, first)
        self.num_drawable += int(self.drawable(new).sum())
        return Added(episodes, np.concatenate([old, new[self.drawable(new)]]))

    def drop_before(self, serial: int) -> np.ndarray:
        """Forget the rows with lower serials; return them."""
        gone = np.arange(self.begin, max(self.begin, serial))
        slots = gone % self._capacity
        self.num_drawable -= int(self._drawable[slots].sum())
        self.num_episodes -= int((self._next[slots] < 0).sum())
        self._drawable[slots] = False
        self.begin += len(gone)
        return gone

    def rebuild(
        self, begin: int, episodes: np.ndarray, usable: np.ndarray, ended: np.ndarray
    ) -> None:
        """Make the links of rows again from the facts about them.

        Args:
            begin: serial of the first.
            episodes: number of the episode of each, int64 `[n]`.
            usable: which may be drawn, bool `[n]`.
            ended: which end their episode, bool `[n]`.
        """
        self.begin, self.end = begin, begin + len(episodes)
        by_episode = np.argsort(episodes, kind="stable")
        same = episodes[by_episode][1:] == episodes[by_episode][:-1]
        successor = np.full(len(episodes), -1, np.int64)
        successor[by_episode[:-1][same]] = begin + by_episode[1:][same]
        self._drawable[:] = False
        serials = np.arange(begin, self.end)
        self._set(serials, successor, usable, ended)
        self.num_drawable = int(self._drawable.sum())
        self.num_episodes = int((successor < 0).sum())

    def _set(
        self, serials: np.ndarray, successor: np.ndarray, usable: np.ndarray, ended: np.ndarray
    ) -> None:
        slots = serials % self._capacity
        self._next[slots] = successor
        self._usable[slots] = usable
        self._drawable[slots] = usable & (ended | (successor >= 0))

    def _open_streams(
        self, streams: Sequence[Hashable] | None, envs: int
    ) -> list[tuple[int, int] | None]:
        found = [self.streams.get(name) for name in streams] if streams else [None] * envs
        # What has been dropped cannot be linked to: the episode begins anew.
        return [at if at is not None and at[1] >= self.begin else None for at in found]

    def _number(
        self, kept: np.ndarray, stretch: np.ndarray, open_: list[tuple[int, int] | None]
    ) -> np.ndarray:
        """Return the episode of each row, those that go on first of all."""
        base = 2 * len(kept) + 2
        env = np.broadcast_to(np.arange(kept.shape[1]), kept.shape)[kept]
        distinct, which = np.unique(env * base + stretch[kept], return_inverse=True)
        goes_on = np.array([at is not None for at in open_])[distinct // base]
        goes_on &= distinct % base == 0
        numbers = np.empty(len(distinct), np.int64)
        begun = int((~goes_on).sum())
        numbers[~goes_on] = self.next_episode + np.arange(begun)
        numbers[goes_on] = [open_[column][0] for column in distinct[goes_on] // base]
        self.next_episode += begun
        self.num_episodes += begun
        return numbers[which.reshape(-1)]

    def _join(
        self,
        open_: list[tuple[int, int] | None],
        firsts: np.ndarray,
        episodes: np.ndarray,
        first: int,
    ) -> np.ndarray:
        """Link the last rows of streams to the first new ones; return those now drawable."""
        joined = []
        for at, successor in zip(open_, firsts.tolist(), strict=True):
            if at is not None and successor < _NONE and episodes[successor - first] == at[0]:
                slot = at[1] % self._capacity
                self._next[slot] = successor
                if self._usable[slot]:
                    self._drawable[slot] = True
                    joined.append(at[1])
        self.num_drawable += len(joined)
        return np.array(joined, np.int64)

    def _remember(
        self,
        streams: Sequence[Hashable] | None,
        serials: np.ndarray,
        stretch: np.ndarray,
        ended: np.ndarray,
        episodes: np.ndarray,
        first: int,
    ) -> None:
        if streams is None:
            return
        kept = serials < _NONE
        step = len(kept) - 1 - kept[::-1].argmax(0)
        env = np.arange(kept.shape[1])
        last = np.where(kept[step, env], serials[step, env], -1)
        over = (stretch[-1] != np.where(last >= 0, stretch[step, env], 0)) | (
            ended[step, env] & (last >= 0)
        )
        numbers = np.full(len(last), -1)
        numbers[last >= 0] = episodes[last[last >= 0] - first]
        rows = zip(streams, over.tolist(), numbers.tolist(), last.tolist(), strict=True)
        for name, is_over, number, serial in rows:
            if is_over:
                self.streams.pop(name, None)
            elif serial >= 0:
                self.streams[name] = (number, serial)
