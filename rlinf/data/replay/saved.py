"""Saved shards: reading them where they lie, and handing their rows to buffers of any number.

A saved buffer is a folder with `rank_<r>` for each rank that saved its shard: segment files, and
`state.json` with `state.safetensors` beside it, which is written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlinf.data.replay.fields import Columns, Layout, ReplayDamaged, layout_of_plain
from rlinf.data.replay.table import MappedTable, SegmentFile
from rlinf.utils.checkpoint import load_tree

FORMAT = 1
FACTS, FRAMES, FINALS = "facts", "frames", "finals"
TABLES = (FACTS, FRAMES, FINALS)
_BLOCK = 8192


def shard_folder(folder: str | Path, rank: int) -> Path:
    """Return where the shard of a rank is saved."""
    return Path(folder) / f"rank_{rank}"


def read_state(folder: Path) -> dict[str, Any]:
    """Read the state of a shard.

    Raises:
        ReplayDamaged: it is missing, unreadable, or of another version.
    """
    file = folder / "state.json"
    if not file.exists():
        raise ReplayDamaged(
            f"{file} is missing: {folder} is no saved replay buffer, or was not written to its end"
        )
    try:
        state = load_tree(folder / "state")
    except Exception as error:
        # Whatever the parser stumbled over, the file is what the user has to replace.
        raise ReplayDamaged(
            f"{file} cannot be read ({error}); use another copy of the buffer"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else json.dumps(state)[:40]
        raise ReplayDamaged(f"{file} has format {found}, this version reads {FORMAT}")
    return state


@dataclass(frozen=True)
class SavedShard:
    """A shard on the disk.

    Attributes:
        folder: where.
        state: its state.
        layouts: columns of its tables, by table.
        files: segment files of its tables, by table.
    """

    folder: Path
    state: dict[str, Any]
    layouts: dict[str, Layout]
    files: dict[str, list[SegmentFile]]

    @classmethod
    def open(cls, folder: str | Path, verify: bool = True) -> SavedShard:
        """Open a shard.

        Args:
            folder: where.
            verify: compare the checksum of each file; names and sizes are always compared.

        Raises:
            ReplayDamaged: a file is missing or damaged; says which.
        """
        folder = Path(folder)
        state = read_state(folder)
        tables = state["tables"]
        layouts = {name: layout_of_plain(table["layout"]) for name, table in tables.items()}
        files = {
            name: [SegmentFile.of_entry(folder, entry) for entry in table["files"]]
            for name, table in tables.items()
        }
        for file in (file for of_table in files.values() for file in of_table) if verify else ():
            file.verify()
        return cls(folder, state, layouts, files)

    def __len__(self) -> int:
        return self.state["end"] - self.state["begin"]

    def table(self, name: str) -> MappedTable:
        """Map one of its tables, to read."""
        facts = self.state["tables"][name]
        table = MappedTable(name, self.layouts[name], facts["segment_rows"], None)
        table.view(self.files[name], facts["begin"], facts["end"])
        return table

    def facts(self, name: str) -> np.ndarray:
        """Return a column of the facts about all rows."""
        return self.table(FACTS).gather(name, np.arange(self.state["begin"], self.state["end"]))


def find_shards(folder: str | Path, verify: bool = True) -> list[SavedShard]:
    """Open all shards of a saved buffer, by rank.

    Raises:
        ReplayDamaged: there are none, one is missing, or damaged.
    """
    folder = Path(folder)
    first = shard_folder(folder, 0)
    if not first.is_dir():
        raise ReplayDamaged(f"{folder} is no saved replay buffer: it has no folder {first.name}")
    ranks = read_state(first)["world_size"]
    return [SavedShard.open(shard_folder(folder, rank), verify) for rank in range(ranks)]


class Block(NamedTuple):
    """Rows of shards.

    Attributes:
        facts: with episodes numbered anew; `final` is the row of `finals`, -1 for none.
        frames: observations and actions.
        finals: final observations.
        priorities: leaves of the sum tree; None if a shard has none.
    """

    facts: Columns
    frames: Columns
    finals: Columns
    priorities: np.ndarray | None


class _Source:
    """A shard whose rows are read."""

    def __init__(self, shard: SavedShard, first_episode: int) -> None:
        self.shard = shard
        self.serials = np.arange(shard.state["begin"], shard.state["end"])
        self.tables = {name: shard.table(name) for name in TABLES}
        numbers = self.tables[FACTS].gather("episode", self.serials)
        self.numbers, which = np.unique(numbers, return_inverse=True)
        self.episodes = first_episode + which.reshape(-1)
        self.priorities = shard.state["priorities"]


class Rows:
    """Rows of several shards, oldest first, chosen by episode or by age.

    Args:
        shards: with the same columns.

    Raises:
        ValueError: shards differ in their columns.
    """

    def __init__(self, shards: Sequence[SavedShard]) -> None:
        shards = [shard for shard in shards if shard.layouts]
        for shard in shards[1:]:
            if shard.layouts != shards[0].layouts:
                raise ValueError(
                    f"{shard.folder} has other columns than {shards[0].folder}: "
                    f"{_difference(shards[0].layouts, shard.layouts)}; only buffers of the same "
                    "observations and actions can be joined"
                )
        self.layouts = shards[0].layouts if shards else {}
        self._sources: list[_Source] = []
        self.num_episodes = 0
        for shard in shards:
            self._sources.append(_Source(shard, self.num_episodes))
            self.num_episodes += len(self._sources[-1].numbers)
        ages = [source.serials - source.shard.state["end"] for source in self._sources]
        which = [np.full(len(source.serials), i) for i, source in enumerate(self._sources)]
        ordered = np.lexsort((_cat(which), _cat(ages)))
        self._which = _cat(which)[ordered]
        self._place = _cat([np.arange(len(s.serials)) for s in self._sources])[ordered]
        self.episodes = _cat([source.episodes for source in self._sources])[ordered]

    def __len__(self) -> int:
        return len(self.episodes)

    def keep(self, chosen: np.ndarray) -> None:
        """Leave out all rows but some, bool `[len(self)]`."""
        self._which, self._place = self._which[chosen], self._place[chosen]
        self.episodes = self.episodes[chosen]

    def facts(self, name: str) -> np.ndarray:
        """Return a column of the facts about all rows."""
        return self._gather(FACTS, name, slice(None))

    def streams(self) -> dict[Any, int]:
        """Return the episode that each stream is in; one that two shards have counts for none."""
        found: dict[Any, int] = {}
        twice = set()
        for source in self._sources:
            for name, number, _ in source.shard.state["streams"]:
                twice |= {name} & found.keys()
                place = np.searchsorted(source.numbers, number)
                if place < len(source.numbers) and source.numbers[place] == number:
                    found[name] = int(source.episodes.min() + place)
        return {name: episode for name, episode in found.items() if name not in twice}

    @property
    def greatest_priority(self) -> float:
        """Greatest priority of any shard."""
        return max([1.0, *(s.shard.state["greatest_priority"] for s in self._sources)])

    def blocks(self) -> Iterator[Block]:
        """Read the rows, some at a time."""
        for begin in range(0, len(self), _BLOCK):
            yield self._block(slice(begin, begin + _BLOCK))

    def _block(self, part: slice) -> Block:
        facts = {name: self._gather(FACTS, name, part) for name in self.layouts[FACTS]}
        frames = {name: self._gather(FRAMES, name, part) for name in self.layouts[FRAMES]}
        ends = facts["final"] >= 0
        which, serials = self._which[part][ends], facts["final"][ends]
        finals = {}
        for name, field in self.layouts[FINALS].items():
            finals[name] = np.empty((len(serials), *field.shape), field.dtype)
            for i, source in enumerate(self._sources):
                own = which == i
                finals[name][own] = source.tables[FINALS].gather(name, serials[own])
        facts["final"] = np.where(ends, ends.cumsum() - 1, -1)
        facts["episode"] = self.episodes[part]
        priorities = None
        if all(source.priorities is not None for source in self._sources):
            priorities = np.empty(len(facts["episode"]))
            for i, source in enumerate(self._sources):
                own = self._which[part] == i
                priorities[own] = source.priorities[self._place[part][own]]
        return Block(facts, frames, finals, priorities)

    def _gather(self, table: str, name: str, part: slice) -> np.ndarray:
        which, place = self._which[part], self._place[part]
        field = self.layouts[table][name]
        out = np.empty((len(which), *field.shape), field.dtype)
        for i, source in enumerate(self._sources):
            own = which == i
            out[own] = source.tables[table].gather(name, source.serials[place[own]])
        return out


def join_shards(shards: Sequence[SavedShard], rank: int = 0, world_size: int = 1) -> Rows:
    """Return the rows of whole episodes that are the share of a rank.

    Args:
        shards: all of them.
        rank: whose share.
        world_size: how many ranks share.
    """
    rows = Rows(shards)
    rows.keep(rows.episodes % world_size == rank)
    return rows


def _cat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _difference(one: dict[str, Layout], other: dict[str, Layout]) -> str:
    for table in TABLES:
        for name in sorted({*one[table], *other[table]}):
            a, b = one[table].get(name), other[table].get(name)
            if a != b:
                said = [f"{f.format} {list(f.shape)}" if f else "nothing" for f in (a, b)]
                return f"{name} is {said[1]} instead of {said[0]}"
    return "their tables"
