"""Statistics of states and actions, by robot, as `experiment_cfg/metadata.json` keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rlinf.config.suggest import did_you_mean
from rlinf.models.embodiment.flow_vla.statistics import Statistics

METADATA_FILE = "experiment_cfg/metadata.json"


def read_metadata(folder: Path, tag: str, keys: Mapping[str, Sequence[str]]) -> Statistics | None:
    """Read the statistics of one robot.

    Args:
        folder: In the layout of Isaac-GR00T.
        tag: Of the robot.
        keys: Parts of `state` and `action` that stand behind each other; empty is all of them, as
            they stand in the file.

    Returns:
        The statistics of whole states and actions; None if there is no such file.

    Raises:
        ValueError: The robot or a part is not in the file.
    """
    file = folder / METADATA_FILE
    if not file.is_file():
        return None
    robots = json.loads(file.read_text())
    if tag not in robots:
        raise ValueError(
            f"{file} has statistics of {', '.join(sorted(robots))}, and none of '{tag}': set "
            f"model.embodiment_tag. {did_you_mean(tag, robots)}".rstrip()
        )
    statistics = robots[tag]["statistics"]
    return {
        which: _joined(statistics[which], keys[which], f"{file}: {which} of '{tag}'", which)
        for which in ("state", "action")
    }


def write_metadata(
    folder: Path, tag: str, maps: Mapping[str, tuple[Tensor, Tensor]], images: Sequence[int]
) -> None:
    """Write the statistics of a robot, each of `state` and `action` as one part.

    Least and greatest numbers are what -1 and 1 stand for, and all that is read. The other entries
    are there because readers of the layout ask for them.

    Args:
        folder: In the layout of Isaac-GR00T.
        tag: Of the robot.
        maps: Shift and spread of `state` and `action`.
        images: Width and height of each camera's pictures.
    """
    statistics: dict[str, Any] = {}
    modalities: dict[str, Any] = {"video": {}}
    for which, (shift, spread) in maps.items():
        low, high = (shift - spread).tolist(), (shift + spread).tolist()
        numbers = {"max": high, "min": low, "mean": shift.tolist(), "std": spread.tolist()}
        statistics[which] = {which: numbers | {"q01": low, "q99": high}}
        shape = {"absolute": True, "rotation_type": None, "shape": [len(shift)]}
        modalities[which] = {which: shape | {"continuous": True}}
    for number, size in enumerate(images):
        video = {"resolution": [size, size], "channels": 3, "fps": 10}
        modalities["video"][f"camera{number + 1}"] = video
    file = folder / METADATA_FILE
    file.parent.mkdir(exist_ok=True)
    own = {"statistics": statistics, "modalities": modalities, "embodiment_tag": tag}
    file.write_text(json.dumps({tag: own}, indent=2) + "\n")


def _joined(
    parts: Mapping[str, Mapping[str, Sequence[float]]], keys: Sequence[str], where: str, which: str
) -> dict[str, list[float]]:
    missing = [key for key in keys if key not in parts]
    if missing:
        raise ValueError(
            f"{where} has parts {', '.join(parts)}, and no {', '.join(missing)}: mend "
            f"model.{which}_keys"
        )
    chosen = [parts[key] for key in keys or parts]
    names = [name for name in ("min", "max", "mean", "std", "q01", "q99") if name in chosen[0]]
    return {name: [number for part in chosen for number in part[name]] for name in names}
