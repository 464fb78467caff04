"""Statistics of states and actions in the folders of lerobot and openpi."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf.models.embodiment.openvla.statistics import of_dataset, read_statistics
from rlinf.models.tensor_files import SafetensorsFiles

PREPROCESSOR = "policy_preprocessor_step_*_normalizer_processor.safetensors"
"""Where lerobot keeps them; the number is that of the step."""
_LEROBOT = {"observation.state.": "state", "action.": "action"}

Statistics = dict[str, Mapping[str, Any]]
"""Of `state` and `action`: `mean`, `std`, `q01`, ... by name."""


def statistics_at(path: Path, key: str | None) -> Statistics:
    """Read statistics as OpenVLA keeps them; see `rlinf.models.embodiment.openvla.statistics`."""
    _, found = of_dataset(read_statistics(path), key)
    return {"state": found.get("proprio", {}), "action": found.get("action", {})}


def statistics_in(folder: Path, key: str | None) -> Statistics | None:
    """Read the statistics that come with a model.

    Args:
        folder: In the layout of lerobot, or of openpi.
        key: Name of the asset of openpi; None if there is only one.

    Returns:
        The statistics; None if there are none.
    """
    files = sorted(folder.glob(PREPROCESSOR))
    if files:
        source, found = SafetensorsFiles(files), {"state": {}, "action": {}}
        for name in source.names():
            for prefix, which in _LEROBOT.items():
                if name.startswith(prefix):
                    found[which][name.removeprefix(prefix)] = source.read(name)
        return found
    assets = {file.parent.name: file for file in folder.glob("assets/**/norm_stats.json")}
    if (folder / "norm_stats.json").is_file():
        assets[folder.name] = folder / "norm_stats.json"
    if not assets:
        return None
    _, file = of_dataset(assets, key)
    found = json.loads(file.read_text())["norm_stats"]
    return {"state": found["state"], "action": found["actions"]}
