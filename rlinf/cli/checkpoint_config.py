"""The config with which a checkpoint is evaluated: that of the run which wrote it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FILE = "checkpoint.yaml"


def of(name: str) -> str | None:
    """Return the path of a config that evaluates a checkpoint, written into the folder of its run.

    Args:
        name: Folder of a checkpoint, or of a run, whose newest one is meant.

    Returns:
        The path; None if the name is not that of such a folder.

    Raises:
        rlinf.utils.checkpoint.CheckpointError: There is no checkpoint, or it is not complete.
    """
    path = Path(name)
    is_one = re.fullmatch(r"\.?global_step_\d+.*", path.name) is not None
    has_some = path.is_dir() and (path.name == "checkpoints" or (path / "checkpoints").is_dir())
    if not (is_one or has_some):
        return None
    from omegaconf import OmegaConf

    from rlinf.utils.checkpoint import Checkpoint

    # The run compares the hashes: once is enough.
    checkpoint = Checkpoint.find(path, verify=False)
    config = _for_evaluation(checkpoint)
    place = checkpoint.run_folder / f"eval_{checkpoint.path.name}" / FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    return str(place)


def _for_evaluation(checkpoint: Any) -> dict[str, Any]:
    config = dict(checkpoint.manifest["config"])
    run = checkpoint.run_folder
    runner = dict(config["runner"])
    runner["resume_dir"] = str(checkpoint.path.resolve())
    # It may lie elsewhere than where it was written.
    runner["logger"] = runner["logger"] | {"log_path": str(run.parent), "experiment_name": run.name}
    config["runner"] = runner
    if config.get("actor") and not runner["task_type"].startswith("reasoning"):
        # The weights are in the checkpoint; those that training began with may be gone. Of a
        # language model the folder says what it is, and has the tokenizer.
        model = config["actor"]["model"] | {"model_path": None}
        config["actor"] = config["actor"] | {"model": model}
    # Hydra is not to leave files of its own behind.
    config["hydra"] = {"run": {"dir": "."}, "output_subdir": None}
    return config
