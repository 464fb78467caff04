"""Fills the rows of a buffer from saved shards, exactly or shared out anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf.data.replay.fields import plain_layout
from rlinf.data.replay.saved import FACTS, FINALS, FRAMES, TABLES, Block, Rows, SavedShard
from rlinf.data.replay.store import RowStore


def describe(store: RowStore) -> dict[str, Any]:
    """Return what a checkpoint remembers of rows besides their segment files, plain data."""
    index, sampler = store.index, store.sampler
    serials = np.arange(index.begin, index.end)
    return {
        "capacity": store.settings.capacity,
        "begin": index.begin,
        "end": index.end,
        "next_episode": index.next_episode,
        "streams": [[name, *at] for name, at in index.streams.items()],
        "priorities": None if sampler is None else sampler.leaves(serials),
        "greatest_priority": 1.0 if sampler is None else sampler.greatest,
        "tables": {
            name: {
                "layout": plain_layout(table.layout),
                "segment_rows": table.segment_rows,
                "begin": table.begin,
                "end": table.end,
            }
            for name, table in store.tables.items()
        },
    }


def restore(store: RowStore, shard: SavedShard) -> list[str]:
    """Fill empty rows with those of a shard, under the same serials.

    Returns:
        In words, what is not as it was saved.
    """
    state = shard.state
    if not shard.layouts:
        return []
    begin, end = state["begin"], state["end"]
    keep = max(begin, end - store.settings.capacity)
    if keep > begin and not store.settings.overwrite:
        raise ValueError(
            f"{shard.folder} has {end - begin} transitions, this buffer holds "
            f"{store.settings.capacity} and does not overwrite; raise its capacity"
        )
    saved = state["tables"]
    store.make_tables(shard.layouts, {name: saved[name]["segment_rows"] for name in TABLES})
    facts = store.tables[FACTS]
    for name in (FACTS, FRAMES):
        files = [file for file in shard.files[name] if file.end > keep]
        store.tables[name].load(files, keep, end)
    serials = np.arange(keep, end)
    final = facts.gather("final", serials)
    first = int(final[final >= 0].min(initial=saved[FINALS]["end"]))
    files = [file for file in shard.files[FINALS] if file.end > first]
    store.tables[FINALS].load(files, first, saved[FINALS]["end"])
    _rebuild(store, keep)
    store.index.next_episode = state["next_episode"]
    store.index.streams = {name: (episode, at) for name, episode, at in state["streams"]}
    notes = []
    if store.sampler is not None and state["priorities"] is not None:
        leaves = state["priorities"][keep - begin :]
        store.sampler.restore(serials, leaves, state["greatest_priority"])
    elif store.sampler is not None:
        store.sampler.admit(serials[store.index.drawable(serials)])
        notes.append("priorities of the replay buffer, which was saved without")
    if keep > begin:
        notes.append(f"{keep - begin} oldest transitions of the replay buffer: capacity is less")
    elif store.sampler is not None and state["capacity"] != store.settings.capacity:
        notes.append("the draws of the replay buffer, whose capacity is another")
    return notes


def absorb(store: RowStore, rows: Rows) -> list[str]:
    """Add rows of saved shards to those that are there, under new serials.

    Returns:
        In words, what is not as it was saved.

    Raises:
        ValueError: they do not fit; says why.
    """
    if not rows.layouts:
        return []
    if not store.tables:
        store.make_tables(rows.layouts)
    elif store.layouts != rows.layouts:
        raise ValueError(
            "the rows have other columns than this buffer; only those of the same observations "
            "and actions can be added"
        )
    capacity, shift = store.settings.capacity, store.index.next_episode
    if len(store) + len(rows) > capacity and not store.settings.overwrite:
        raise ValueError(
            f"{len(rows)} transitions do not fit: the buffer has {len(store)} of at most "
            f"{capacity} and does not overwrite; raise its capacity"
        )
    too_many = max(0, len(rows) - capacity)
    rows.keep(np.arange(len(rows)) >= too_many)
    leaves = []
    for block in rows.blocks():
        leaves.append((_append(store, block, shift), block.priorities))
    _rebuild(store, store.index.begin)
    store.index.next_episode = shift + rows.num_episodes
    _resume_streams(store, rows.streams(), shift)
    if store.sampler is not None:
        for serials, saved in leaves:
            _take_priorities(store, serials, saved, rows.greatest_priority)
    return [f"{too_many} oldest transitions of the replay buffer"] if too_many else []


def _append(store: RowStore, block: Block, shift: int) -> np.ndarray:
    """Add rows without links; return their serials."""
    count, ends = len(block.facts["episode"]), len(next(iter(block.finals.values())))
    store.make_room(count, ends)
    final, base = block.facts["final"], store.tables[FINALS].end
    renumbered = {
        "final": np.where(final >= 0, base + final, -1),
        "episode": block.facts["episode"] + shift,
    }
    if ends:
        store.tables[FINALS].append(block.finals)
    store.tables[FRAMES].append(block.frames)
    first = store.tables[FACTS].append(block.facts | renumbered)
    store.index.end = store.tables[FACTS].end
    store.seal()
    return np.arange(first, store.index.end)


def _rebuild(store: RowStore, begin: int) -> None:
    facts = store.tables[FACTS]
    serials = np.arange(begin, facts.end)
    ended = facts.gather("terminated", serials) | facts.gather("truncated", serials)
    store.index.rebuild(
        begin, facts.gather("episode", serials), facts.gather("usable", serials), ended
    )


def _resume_streams(store: RowStore, episodes: dict[Any, int], shift: int) -> None:
    serials = np.arange(store.index.begin, store.index.end)
    serials = serials[store.index.next(serials) < 0]
    numbers = store.tables[FACTS].gather("episode", serials)
    last = dict(zip(numbers.tolist(), serials.tolist(), strict=True))
    for name, episode in episodes.items():
        if episode + shift in last:
            store.index.streams[name] = (episode + shift, last[episode + shift])


def _take_priorities(
    store: RowStore, serials: np.ndarray, saved: np.ndarray | None, greatest: float
) -> None:
    here = serials >= store.index.begin
    here[here] = store.index.drawable(serials[here])
    serials = serials[here]
    if saved is None:
        store.sampler.admit(serials)
    else:
        greatest = max(greatest, store.sampler.greatest)
        store.sampler.restore(serials, saved[here], greatest)
