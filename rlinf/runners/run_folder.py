"""The folder of a run: its configuration, and a summary that is there however the run ends."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rlinf.utils.checkpoint import CheckpointStore

_PACKAGES = ("rlinf", "torch", "ray", "numpy", "gymnasium", "mujoco", "metaworld", "transformers")


def training_folder(cfg: Any) -> Path:
    """`<log_path>/<experiment_name>`."""
    return Path(cfg.runner.logger.log_path) / cfg.runner.logger.experiment_name


def checkpoint_folder(cfg: Any) -> Path:
    """`<log_path>/<experiment_name>/checkpoints`, or below `actor.checkpoint_save_path`."""
    actor = cfg.get("actor")
    place = None if actor is None else actor.checkpoint_save_path
    if place is None:
        return training_folder(cfg) / "checkpoints"
    return Path(place) / cfg.runner.logger.experiment_name / "checkpoints"


def run_folder(cfg: Any) -> Path:
    """Return where a run writes: an evaluation does not touch what the training wrote.

    `<log_path>/<experiment_name>` for training, `eval` or `eval_global_step_<N>` below it for an
    evaluation.
    """
    folder = training_folder(cfg)
    if not cfg.runner.only_eval:
        return folder
    wanted = cfg.runner.resume_dir
    if wanted == "auto":
        known = CheckpointStore(checkpoint_folder(cfg)).all()
        wanted = str(known[-1].path) if known else None
    return folder / ("eval" if wanted is None else f"eval_{Path(wanted).name}")


def versions() -> dict[str, str]:
    """Return the versions of what matters for the numbers."""
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


class RunSummary:
    """Collects what a run is remembered by and writes it as `summary.json`.

    Args:
        folder: folder of the run.
        cfg: the configuration, which is saved beside it.
    """

    def __init__(self, folder: Path, cfg: Any):
        from omegaconf import OmegaConf

        from rlinf.config import to_plain

        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(to_plain(cfg))))
        self._begin = time.time()
        self.facts: dict[str, Any] = {
            "status": "running",
            "seed": cfg.runner.seed,
            "command": sys.argv,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began": self._begin,
            "versions": versions(),
        }
        # Whoever looks at the folder meanwhile must not see the summary of an earlier run.
        self.write()

    def write(self, **facts: Any) -> Path:
        """Add facts and write the file, whole or not at all."""
        self.facts |= facts
        self.facts["wall_seconds"] = round(time.time() - self._begin, 3)
        path = self.folder / "summary.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.facts, indent=2) + "\n")
        os.replace(part, path)
        return path
