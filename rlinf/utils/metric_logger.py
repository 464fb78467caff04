"""Metrics of a run, to TensorBoard and to a file of JSON lines, on one step axis."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MetricLogger:
    """Writes metrics to all back-ends that were asked for.

    A back-end that fails is switched off, loudly; training goes on.

    Args:
        folder: folder of the run.
        cfg: the `runner.logger` section.
    """

    def __init__(self, folder: Path, cfg: Any):
        self.folder = folder
        self._cfg = cfg
        self._backends: dict[str, Any] | None = None

    def start(self, step: int) -> None:
        """Opens the back-ends; what an earlier run wrote of later steps than `step` is dropped."""
        self._backends = {}
        makers = {
            "tensorboard": _TensorBoard,
            "jsonl": _JsonLines,
            "wandb": _Wandb,
            "swanlab": _Swanlab,
        }
        for name in self._cfg.logger_backends:
            try:
                self._backends[name] = makers[name](self.folder, self._cfg, step)
            except Exception as error:
                self._complain(name, error)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes metrics of one step."""
        if self._backends is None:
            self.start(0)
        assert self._backends is not None
        for name, backend in list(self._backends.items()):
            try:
                backend.log(metrics, step)
            except Exception as error:
                del self._backends[name]
                self._complain(name, error)

    def close(self) -> None:
        """Writes out what is buffered."""
        for name, backend in (self._backends or {}).items():
            try:
                backend.close()
            except Exception as error:
                self._complain(name, error)

    def _complain(self, name: str, error: Exception) -> None:
        print(
            f"metrics are not written to {name} from here on: {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )


class _TensorBoard:
    def __init__(self, folder: Path, cfg: Any, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, folder: Path, cfg: Any, step: int):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        kept = [line for line in _lines(path) if json.loads(line)["step"] <= step]
        part = path.with_suffix(".part")
        part.write_text("".join(kept))
        os.replace(part, path)
        self._file = open(path, "a")  # noqa: SIM115 - open for the run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> list[str]:
    """Whole lines; one that was cut off when the run was killed is left out."""
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class _Wandb:
    def __init__(self, folder: Path, cfg: Any, step: int):
        import wandb

        self._run = wandb.init(
            project=cfg.project_name,
            name=cfg.experiment_name,
            entity=cfg.wandb_entity,
            dir=str(folder),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class _Swanlab:
    def __init__(self, folder: Path, cfg: Any, step: int):
        import swanlab

        self._run = swanlab.init(
            project=cfg.project_name,
            experiment_name=cfg.experiment_name,
            mode=cfg.swanlab_mode,
            logdir=str(folder / "swanlab"),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
