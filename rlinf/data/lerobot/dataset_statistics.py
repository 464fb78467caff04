"""Statistics of datasets as OpenVLA keeps them: `dataset_statistics.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.reader import LeRobotDataset
from rlinf.data.lerobot.statistics import number_stats

_KEPT = ("mean", "std", "max", "min", "q01", "q99")
_FEATURES = {"action": "action", "proprio": "observation.state"}
"""What OpenVLA calls features."""


def dataset_statistics(dataset: LeRobotDataset, unscaled: Sequence[int] = ()) -> dict[str, Any]:
    """Return the statistics of one dataset, exact over all frames.

    Args:
        dataset: The dataset.
        unscaled: Numbers of an action that are not scaled, such as that of a gripper, which is 0
            or 1; negative ones count from the end.

    Returns:
        `action` and, where the dataset has states, `proprio`, each with `mean`, `std`, `max`,
        `min`, `q01` and `q99`; `mask` of the actions; `num_transitions` and `num_trajectories`.

    Raises:
        DatasetError: There are no actions, or not so many numbers in one.
    """
    names = {key: name for key, name in _FEATURES.items() if name in dataset.features}
    if "action" not in names:
        raise DatasetError(f"{dataset.root} has no feature 'action'")
    columns: dict[str, list[np.ndarray]] = {key: [] for key in names}
    for episode in dataset.episodes(list(names.values())):
        for key, name in names.items():
            columns[key].append(np.asarray(episode.values[name]))
    found: dict[str, Any] = {}
    for key, parts in columns.items():
        stats = number_stats(np.concatenate(parts))
        found[key] = {name: stats[name].tolist() for name in _KEPT}
    mask = [True] * len(found["action"]["mean"])
    for index in unscaled:
        if not -len(mask) <= index < len(mask):
            raise DatasetError(
                f"{dataset.root} has actions of {len(mask)} numbers; there is no number {index}"
            )
        mask[index] = False
    found["action"]["mask"] = mask
    found["num_transitions"], found["num_trajectories"] = len(dataset), dataset.num_episodes
    return found


def write_dataset_statistics(
    folders: Mapping[str, str | Path], out: str | Path, unscaled: Sequence[int] = ()
) -> Path:
    """Write the statistics of datasets into a file.

    Args:
        folders: By name, which is the `unnorm_key`, the dataset.
        out: The file, or a folder that gets it.
        unscaled: As in `dataset_statistics`.

    Returns:
        The file.
    """
    out = Path(out)
    file = out / "dataset_statistics.json" if out.is_dir() else out
    found = {
        name: dataset_statistics(LeRobotDataset(folder), unscaled)
        for name, folder in folders.items()
    }
    file.write_text(json.dumps(found, indent=2) + "\n")
    return file
