"""Statistics of a dataset as OpenVLA keeps them, in `dataset_statistics.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf.config.suggest import did_you_mean

STATISTICS_FILE = "dataset_statistics.json"


def read_statistics(path: Path) -> dict[str, Any]:
    """Read a file of statistics, by dataset.

    Args:
        path: The file, or a folder that holds it.

    Raises:
        ValueError: There is no such file.
    """
    path = path.expanduser()
    file = path / STATISTICS_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"there are no statistics at {file}: name the file {STATISTICS_FILE} of a model, or "
            "its folder"
        )
    return json.loads(file.read_text())


def of_dataset(statistics: Mapping[str, Any], key: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the statistics of one dataset, and its name.

    Args:
        statistics: By dataset.
        key: Name of the dataset; None if there is only one. `x_no_noops` is found as `x`, too.

    Raises:
        ValueError: There is no such dataset, or several to choose from.
    """
    if key is None:
        if len(statistics) != 1:
            raise ValueError(
                f"there are statistics of {', '.join(sorted(statistics))}: choose one of them with "
                "model.unnorm_key"
            )
        key = next(iter(statistics))
    for name in (key, f"{key}_no_noops"):
        if name in statistics:
            return name, statistics[name]
    raise ValueError(
        f"model.unnorm_key is '{key}'; there are statistics of {', '.join(sorted(statistics))}. "
        f"{did_you_mean(key, statistics)}"
    )


def action_statistics(path: Path, key: str | None) -> Mapping[str, Any]:
    """Return `q01`, `q99` and, where it is given, `mask` of the actions of a dataset.

    Args:
        path: As in `read_statistics`.
        key: As in `of_dataset`.

    Raises:
        ValueError: There are none.
    """
    name, found = of_dataset(read_statistics(path), key)
    action = found.get("action", {})
    if "q01" not in action or "q99" not in action:
        raise ValueError(f"{path}: the statistics of '{name}' have no q01 and q99 of actions")
    return action
