"""Where metrics can go: TensorBoard, a file of JSON lines, wandb, swanlab."""

from __future__ import annotations

import importlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from rlinf.utils.extras import install_hint


class Backend(Protocol):
    """Takes the metrics of a run; made with the run's folder, its `runner.logger` and a step.

    The step is that of the checkpoint that the run goes on from, 0 for a new run.
    """

    def __init__(self, folder: Path, cfg: Any, step: int) -> None: ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics of one step."""

    def close(self) -> None:
        """Write out what is buffered."""


class TensorBoard:
    """Event files under `tensorboard/`."""

    def __init__(self, folder: Path, cfg: Any, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        self._writer.close()


class JsonLines:
    """`metrics.jsonl`: one object per line, with its step; there as soon as it is logged."""

    def __init__(self, folder: Path, cfg: Any, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= step]
        part = path.with_suffix(".part")
        part.write_text("".join(kept))
        os.replace(part, path)
        self._file = open(path, "a")  # noqa: SIM115 - open for the run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a line."""
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Wandb:
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, folder: Path, cfg: Any, step: int) -> None:
        wandb = _import("wandb")
        proxy = cfg.wandb_proxy
        known = folder / "wandb_run_id"
        self._run = wandb.init(
            project=cfg.project_name,
            name=cfg.experiment_name,
            entity=cfg.wandb_entity,
            dir=str(folder),
            config=_config_of(folder),
            # A resumed run goes on in the same curves; what it repeats is the same, bit for bit.
            id=known.read_text() if step > 0 and known.exists() else None,
            resume="allow",
            settings=wandb.Settings(http_proxy=proxy, https_proxy=proxy) if proxy else None,
        )
        known.write_text(self._run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics of one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until everything has been sent."""
        self._run.finish()


class Swanlab:
    """An experiment of SwanLab; `runner.logger.swanlab_mode` says where it is kept."""

    def __init__(self, folder: Path, cfg: Any, step: int) -> None:
        swanlab = _import("swanlab")
        logs = folder / "swanlab"
        logs.mkdir(parents=True, exist_ok=True)
        self._run = swanlab.init(
            project=cfg.project_name,
            experiment_name=cfg.experiment_name,
            mode=cfg.swanlab_mode,
            logdir=str(logs),
            config=_config_of(folder),
            **self._identity(folder / "swanlab_run_id", cfg.swanlab_mode, step),
        )

    @staticmethod
    def _identity(known: Path, mode: str, step: int) -> dict[str, str]:
        """Let a resumed run go on in the same experiment, which only the cloud knows again."""
        if mode != "cloud":
            return {}
        if step == 0 or not known.exists():
            known.write_text(uuid.uuid4().hex[:21])
        return {"id": known.read_text(), "resume": "allow"}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics of one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until everything has been sent."""
        self._run.finish()


BACKENDS: dict[str, type[Backend]] = {
    "tensorboard": TensorBoard,
    "jsonl": JsonLines,
    "wandb": Wandb,
    "swanlab": Swanlab,
}
"""By their name in `runner.logger.logger_backends`."""


def _import(package: str) -> ModuleType:
    """Return a package that not everybody has.

    Raises:
        ValueError: it cannot be imported.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(
            f"runner.logger.logger_backends names {package}, which cannot be imported ({error}); "
            f"pip install {package}, or {install_hint('tracking')}, or take it out of the list"
        ) from error


def _whole_lines(path: Path) -> list[str]:
    """Whole lines; one that was cut off when the run was killed is left out."""
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _config_of(folder: Path) -> dict[str, Any] | None:
    """Return the run's configuration, as it lies in its folder."""
    import yaml

    path = folder / "config.yaml"
    return yaml.safe_load(path.read_text()) if path.exists() else None
