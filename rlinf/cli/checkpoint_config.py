"""The config with which a checkpoint is evaluated: that of the run which wrote it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rlinf.config.task_types import GENERATING

FILE = "checkpoint.yaml"


def of(name: str) -> str | None:
    """Return the path of a config that evaluates a checkpoint, written into the folder of its run.

    Args:
        name: Folder of a checkpoint, or of a run or its experiment, whose newest one is meant.

    Returns:
        The path; None if the name is not that of such a folder.

    Raises:
        rlinf.utils.checkpoint.CheckpointError: There is no checkpoint, or it is not complete.
    """
    path = Path(name)
    is_one = re.fullmatch(r"\.?global_step_\d+.*", path.name) is not None
    from omegaconf import OmegaConf

    from rlinf.utils.checkpoint import Checkpoint
    from rlinf.utils.runs import experiment_runs, new_evaluation_folder
    from rlinf.utils.runs.folders import is_run

    if not (is_one or path.name == "checkpoints" or is_run(path) or experiment_runs(path)):
        return None
    # The run compares the hashes: once is enough.
    checkpoint = Checkpoint.find(path, verify=False)
    config = _for_evaluation(checkpoint)
    folder = new_evaluation_folder(checkpoint.run_folder, f"eval_{checkpoint.path.name}")
    config["runner"]["run_dir"] = str(folder)
    place = folder / FILE
    place.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    return str(place)


def _for_evaluation(checkpoint: Any) -> dict[str, Any]:
    from rlinf.models.settings import section_to_rebuild

    config = dict(checkpoint.manifest["config"])
    runner = dict(config["runner"])
    runner["resume_dir"] = str(checkpoint.path.resolve())
    # What training began with is in none of the weights that are evaluated.
    runner["ckpt_path"] = None
    config["runner"] = runner
    if config.get("actor"):
        config["actor"] = config["actor"] | {"checkpoint_load_path": None}
    if config.get("actor") and runner["task_type"] not in GENERATING:
        # Of a language model the folder says what it is, and has the tokenizer.
        model = section_to_rebuild(config["actor"]["model"])
        config["actor"] = config["actor"] | {"model": model}
        if config.get("rollout"):
            # What training came to is for its placement; an evaluation may have another.
            config["rollout"] = config["rollout"] | {"in_env_process": "auto"}
    # Hydra is not to leave files of its own behind.
    config["hydra"] = {
        "run": {"dir": "."},
        "output_subdir": None,
        "job_logging": {"handlers": {"file": {"filename": "/dev/null"}}},
    }
    return config
