"""The rows of a buffer: three tables and the index over them, kept in step."""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlinf.data.replay.fields import Field, Layout, flatten, naming, to_array
from rlinf.data.replay.index import EpisodeIndex
from rlinf.data.replay.sampling import Priorities, PrioritySampler
from rlinf.data.replay.saved import FACTS, FINALS, FRAMES
from rlinf.data.replay.table import MappedTable, MemoryTable, Table, segment_rows_of
from rlinf.data.replay.trajectory import ReplayTrajectory

_FIRST_FINALS = 256


@dataclass(frozen=True)
class StoreSettings:
    """How rows are kept; see `TrajectoryReplayBuffer`."""

    capacity: int
    enable_cache: bool
    auto_save: bool
    overwrite: bool
    segment_bytes: int
    priorities: Priorities | None


class RowStore:
    """The newest rows, as many as `capacity`.

    Args:
        settings: how they are kept.
        folder: for segment files; None keeps none.

    Attributes:
        tables: facts, frames and finals; none before the first rows are known.
        layouts: columns of each.
        index: links between rows.
        sampler: priorities of rows; None if they have none.
    """

    def __init__(self, settings: StoreSettings, folder: Path | None) -> None:
        self.settings = settings
        self._folder = folder
        self.tables: dict[str, Table] = {}
        self.layouts: dict[str, Layout] = {}
        self.index = EpisodeIndex(settings.capacity)
        self.sampler = None
        if settings.priorities is not None:
            self.sampler = PrioritySampler(settings.priorities, settings.capacity)

    def __len__(self) -> int:
        return self.index.end - self.index.begin

    def add(self, trajectory: ReplayTrajectory) -> int:
        """Add the rows of a complete trajectory; return how many."""
        envs = trajectory.rewards.shape[1]
        if not trajectory.rewards.numel():
            return 0
        if envs > self.settings.capacity:
            raise ValueError(
                f"a step of {envs} envs does not fit a buffer of {self.settings.capacity} "
                "transitions; raise its capacity"
            )
        steps = self.settings.capacity // envs
        if len(trajectory) <= steps or not self.settings.overwrite:
            return self._add_steps(trajectory)
        # Cut where the ring is full; episodes go on from part to part.
        passing = None if trajectory.streams else [_Passing() for _ in range(envs)]
        count = 0
        for begin in range(0, len(trajectory), steps):
            part = trajectory.slice(begin, begin + steps)
            count += self._add_steps(replace(part, streams=passing or part.streams))
        for name in passing or ():
            self.index.streams.pop(name, None)
        return count

    def _add_steps(self, trajectory: ReplayTrajectory) -> int:
        valid = to_array(trajectory.valid)
        kept = valid.any(-1)
        count = int(kept.sum())
        terminated = (to_array(trajectory.terminations) & valid).any(-1)
        truncated = (to_array(trajectory.truncations) & valid).any(-1) & ~terminated
        final_rows, final_of = self._finals_of(trajectory, kept, terminated, truncated)
        frames = flatten(trajectory.obs, "obs") | flatten(trajectory.extras, "extras")
        frames["actions"] = trajectory.actions
        self._fit(frames, trajectory.rewards.shape[2], final_rows)
        self.make_room(count, len(next(iter(final_rows.values()), ())))
        base = self.tables[FINALS].end
        if final_rows:
            self.tables[FINALS].append({name: to_array(v) for name, v in final_rows.items()})
        usable = to_array(trajectory.usable)
        facts = {
            "final": np.where(final_of >= 0, base + final_of, -1)[kept],
            "rewards": to_array(trajectory.rewards)[kept],
            "valid": valid[kept],
            "intervened": to_array(trajectory.intervened)[kept],
            "terminated": terminated[kept],
            "truncated": truncated[kept],
            "usable": usable[kept],
            "version": to_array(trajectory.versions)[kept],
        }
        whole = count == kept.size
        columns = {}
        for name, tensor in frames.items():
            array = to_array(tensor)
            columns[name] = array.reshape(count, *array.shape[2:]) if whole else array[kept]
        self.tables[FRAMES].append(columns)
        begins, ended = to_array(trajectory.begins), terminated | truncated
        added = self.index.add(kept, begins, ended, usable, trajectory.streams)
        self.tables[FACTS].append({"episode": added.episodes, **facts})
        if self.sampler is not None:
            self.sampler.admit(added.drawable)
        self.seal()
        return count

    def seal(self) -> None:
        """Write full segments, if they are to be written as soon as they are full."""
        if self.settings.auto_save:
            for table in self.tables.values():
                table.seal()

    def _finals_of(
        self,
        trajectory: ReplayTrajectory,
        kept: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> tuple[dict[str, Tensor], np.ndarray]:
        """Return final observations in the order of their rows, and the place of each row's."""
        places = np.full(kept.shape, -1, np.int64)
        final, rows = trajectory.final, {}
        if final is not None:
            steps, envs = to_array(final.steps), to_array(final.envs)
            places[steps, envs] = np.arange(len(steps))
            places[~(kept & (terminated | truncated))] = -1
        missing = np.argwhere(truncated & kept & (places < 0))
        if len(missing):
            step, env = missing[0].tolist()
            raise ValueError(
                f"the episode of env {env} was truncated at step {step} and has no final "
                "observation, so its value there is not known; ask for them with "
                "RolloutNeeds(final_observations=True) and hand them over as `final`"
            )
        found = places >= 0
        if found.any():
            chosen = torch.from_numpy(places[found])
            rows = {name: value[chosen] for name, value in flatten(final.obs, "obs").items()}
            places[found] = np.arange(len(chosen))
        return rows, places

    def _fit(self, frames: dict[str, Tensor], chunk: int, finals: dict[str, Tensor]) -> None:
        """Make tables for the first trajectory; check that others fit them."""
        layout = {name: Field.of(tensor, name, 2) for name, tensor in frames.items()}
        observed = {name: field for name, field in layout.items() if name.startswith("obs/")}
        layouts = {FACTS: _facts_layout(chunk), FRAMES: layout, FINALS: observed}
        if not self.tables:
            self.make_tables(layouts)
        given = {name: Field.of(tensor, f"final {name}", 1) for name, tensor in finals.items()}
        for what, own, other in (
            ("a trajectory", self.layouts[FRAMES], layout),
            ("a trajectory", self.layouts[FACTS], layouts[FACTS]),
            ("final observations", self.layouts[FINALS], given or self.layouts[FINALS]),
        ):
            for name in sorted({*own, *other}):
                if own.get(name) != other.get(name):
                    raise ValueError(
                        f"{what} with {name} as {_say(other.get(name))} does not fit this buffer, "
                        f"which has {_say(own.get(name))}"
                    )

    def make_tables(
        self, layouts: dict[str, Layout], segment_rows: dict[str, int] | None = None
    ) -> None:
        """Make empty tables.

        Args:
            layouts: columns by table.
            segment_rows: rows of a segment by table; None follows from `segment_bytes`.
        """
        rows = segment_rows or {
            name: segment_rows_of(layout, self.settings.segment_bytes)
            for name, layout in layouts.items()
        }
        folder = self._folder
        self.layouts = layouts

        def in_memory(name: str, slots: int, grows: bool = False) -> Table:
            return MemoryTable(
                name,
                layouts[name],
                rows[name],
                folder,
                slots=slots,
                grows=grows,
            )

        def mapped(name: str) -> Table:
            return MappedTable(name, layouts[name], rows[name], folder)

        cached = self.settings.enable_cache
        finals = min(self.settings.capacity, _FIRST_FINALS)
        self.tables = {
            FACTS: in_memory(FACTS, self.settings.capacity),
            FRAMES: in_memory(FRAMES, self.settings.capacity) if cached else mapped(FRAMES),
            FINALS: in_memory(FINALS, finals, grows=True) if cached else mapped(FINALS),
        }

    def make_room(self, count: int, finals: int) -> None:
        """Drop the oldest rows and take room on the disk, so that more can be added.

        Args:
            count: rows to come.
            finals: final observations to come.

        Raises:
            ValueError: the buffer is full and does not overwrite.
            ReplayDiskError: the disk is full; nothing has changed.
        """
        begin = max(self.index.begin, self.index.end + count - self.settings.capacity)
        if begin > self.index.begin and not self.settings.overwrite:
            raise ValueError(
                f"{count} transitions do not fit: the buffer has {len(self)} of at most "
                f"{self.settings.capacity} and does not overwrite; raise its capacity, or let it "
                "overwrite"
            )
        self.tables[FRAMES].reserve(count)
        self.tables[FINALS].reserve(finals)
        if begin == self.index.begin:
            return
        gone = self.index.drop_before(min(begin, self.index.end))
        last = int(self.tables[FACTS].gather("final", gone).max(initial=-1))
        self.tables[FINALS].drop_before(last + 1)
        for name in (FACTS, FRAMES):
            self.tables[name].drop_before(begin)
        if self.sampler is not None:
            self.sampler.remove(gone)

    def frames(self, serials: np.ndarray) -> dict[str, Tensor]:
        """Return what was observed and done in rows, by column."""
        table = self.tables[FRAMES]
        return {n: f.tensor(table.gather(n, serials)) for n, f in self.layouts[FRAMES].items()}

    def fact(self, name: str, serials: np.ndarray) -> np.ndarray:
        """Return a column of the facts about rows."""
        return self.tables[FACTS].gather(name, serials)

    def next_observations(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Return what was observed after rows: by the next row, or at the end of the episode."""
        after = self.index.next(rows)
        final = self.tables[FACTS].gather("final", rows)
        ends = np.flatnonzero(final >= 0)
        # A terminal state that was not handed over counts for nothing: any observation does.
        serials = np.where(after >= 0, after, rows)
        observed = {}
        for name, field in self.layouts[FINALS].items():
            array = self.tables[FRAMES].gather(name, serials)
            if len(ends):
                array[ends] = self.tables[FINALS].gather(name, final[ends])
            observed[name] = field.tensor(array)
        return observed

    def close(self) -> None:
        """Let go of memory and files."""
        for table in self.tables.values():
            table.close()
        self.tables = {}


class WorkingFolder:
    """The files of one living buffer; another one is kept out of them.

    Attributes:
        path: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "working"
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ValueError(
                f"{folder} is the working folder of another replay buffer that is in use; give "
                "each buffer and each rank its own"
            ) from error
        self.empty()

    def empty(self) -> None:
        """Remove all files."""
        with naming(self.path):
            shutil.rmtree(self.path)
            self.path.mkdir()

    def close(self) -> None:
        """Remove all files and let others in."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


class _Passing:
    """Name of a stream that is forgotten with the trajectory."""


def _facts_layout(chunk: int) -> Layout:
    return {
        "episode": Field("I64", ()),
        "final": Field("I64", ()),
        "version": Field("I64", ()),
        "rewards": Field("F32", (chunk,)),
        "valid": Field("BOOL", (chunk,)),
        "intervened": Field("BOOL", (chunk,)),
        "terminated": Field("BOOL", ()),
        "truncated": Field("BOOL", ()),
        "usable": Field("BOOL", ()),
    }


def _say(field: Field | None) -> str:
    return f"{field.format} {list(field.shape)}" if field else "nothing"
