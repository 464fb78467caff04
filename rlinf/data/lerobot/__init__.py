"""Datasets in the LeRobot format: v3.0 is written, v3.0 and v2.1 are read.

The format is tables (parquet), videos (mp4) and metadata (JSON and parquet) in one folder. It is
read and written with pyarrow, PyAV and Pillow (the extra `datasets`); the package lerobot is not
needed. One module owns one part of it:

    errors        `DatasetError`, and what to install when a library is missing
    layout        names of files, how a folder is found, atomic replacement of a file
    features      what a feature is: its kind, shape and Arrow type; checks of values
    statistics    mean, std, min, max, quantiles and count, of an episode and merged
    tables        frames as parquet: encode an episode, read a range of rows
    video         encode in the background, join without encoding again, decode by timestamp
    metadata      info, tasks, episodes and statistics; the two versions become one view
    commit        one episode into the files of a dataset: whole or not at all; recovery
    writer        `DatasetWriter`: frames become an episode, which is committed
    reader        `LeRobotDataset`: episodes, frames and windows around a frame
    transitions   episodes as observations, actions, rewards and ends, for replay
    tools         `summarize`, `merge`, `select` and `trim`; `python -m rlinf.data.lerobot`

Writing: `DatasetWriter.add_frame` checks a frame, keeps its numbers and hands pictures of cameras
to encoders that run beside it, behind a bounded queue. `save_episode` writes new versions of the
files that the episode belongs to under temporary names, renames them, and at last renames
`meta/info.json`. That file counts the episodes, so it is the commit: without it, the episode is not
part of the dataset, whatever the other files hold. An open for append cuts off what was not
committed.

Reading: `LeRobotDataset` loads metadata only. A frame or an episode reads the row groups that it
needs and decodes the video frames that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf.data.lerobot.errors import DatasetError
    from rlinf.data.lerobot.reader import Episode, LeRobotDataset
    from rlinf.data.lerobot.tools import merge, select, summarize, trim
    from rlinf.data.lerobot.transitions import EpisodeTransitions, episodes
    from rlinf.data.lerobot.writer import DatasetWriter

_HOMES = {
    "DatasetError": "errors",
    "DatasetWriter": "writer",
    "Episode": "reader",
    "LeRobotDataset": "reader",
    "EpisodeTransitions": "transitions",
    "episodes": "transitions",
    "merge": "tools",
    "select": "tools",
    "summarize": "tools",
    "trim": "tools",
}

__all__ = [
    "DatasetError",
    "DatasetWriter",
    "Episode",
    "EpisodeTransitions",
    "LeRobotDataset",
    "episodes",
    "merge",
    "select",
    "summarize",
    "trim",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
