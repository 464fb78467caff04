"""Where metrics can go: TensorBoard, a file of JSON lines, wandb, swanlab."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from rlinf.utils.extras import install_hint

Result = TypeVar("Result")

START_SECONDS = 30.0
"""How long a run waits for the server of wandb when it begins."""
FINISH_SECONDS = 30.0
"""How long a run waits for a service when it ends."""


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

        _keep_quiet_in_threads_of("tensorboard")
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        self._writer.close()


def _keep_quiet_in_threads_of(package: str) -> None:
    """Leave out what Python prints of disk errors in threads of a package, which tells them itself.

    TensorBoard's thread ends with a traceback on the terminal, and the next `log` raises the error.
    """
    before = threading.excepthook
    if getattr(before, "quiet_for", None) == package:
        return

    def hook(args: Any) -> None:
        frames = traceback.walk_tb(args.exc_traceback)
        names = [frame.f_globals.get("__name__", "") for frame, _ in frames]
        of_package = any(name.partition(".")[0] == package for name in names)
        if not (of_package and isinstance(args.exc_value, OSError)):
            before(args)

    hook.quiet_for = package  # type: ignore[attr-defined]
    threading.excepthook = hook


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
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on this machine.

    So does a server that cannot be reached, or that does not know the user.
    """

    def __init__(self, folder: Path, cfg: Any, step: int) -> None:
        wandb = _import("wandb")
        self._known = folder / "wandb_run_id"
        self._arguments = {
            "project": cfg.project_name,
            "name": cfg.experiment_name,
            "entity": cfg.wandb_entity,
            "dir": str(folder),
            "config": _config_of(folder),
            # A resumed run goes on in the same curves; what it repeats is the same, bit for bit.
            "id": self._known.read_text() if step > 0 and self._known.exists() else None,
            "resume": "allow",
            "settings": wandb.Settings(**_wandb_settings(cfg)),
        }
        try:
            self._run = wandb.init(**self._arguments)
        except wandb.Error as error:
            _tell_offline("wandb", error)
            self._run = wandb.init(**self._arguments, mode="offline")
        self._known.write_text(self._run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics of one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until everything has been sent, for some time."""
        _finish("wandb", self._run.finish, f"{self._arguments['dir']}/wandb/*run-*-{self._run.id}")


class Swanlab:
    """An experiment of SwanLab; `runner.logger.swanlab_mode` says where it is kept.

    A server that cannot be reached, or that does not know the user, is as the mode `offline`.
    """

    def __init__(self, folder: Path, cfg: Any, step: int) -> None:
        swanlab = _import("swanlab")
        self._logs = folder / "swanlab"
        self._logs.mkdir(parents=True, exist_ok=True)
        arguments = {
            "project": cfg.project_name,
            "experiment_name": cfg.experiment_name,
            "logdir": str(self._logs),
            "config": _config_of(folder),
            **self._identity(folder / "swanlab_run_id", cfg.swanlab_mode, step),
        }
        # In the main thread it would take Ctrl-C over, and could not be left behind when it ends.
        try:
            self._run = in_thread(lambda: swanlab.init(mode=cfg.swanlab_mode, **arguments))
        except Exception as error:
            if cfg.swanlab_mode != "cloud":
                raise
            _tell_offline("swanlab", error)
            self._run = in_thread(lambda: swanlab.init(mode="offline", **arguments))

    @staticmethod
    def _identity(known: Path, mode: str, step: int) -> dict[str, str]:
        """Let a resumed run go on in the same experiment, in the cloud or once it is sent there."""
        if mode not in ("cloud", "offline"):
            return {}
        if step == 0 or not known.exists():
            known.write_text(uuid.uuid4().hex[:21])
        return {"id": known.read_text(), "resume": "allow"}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics of one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until everything has been sent, for some time."""
        _finish("swanlab", self._run.finish, f"{self._logs}/run-*")


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


def _wandb_settings(cfg: Any) -> dict[str, Any]:
    """Return the proxy, and how long to wait for the server unless the user says it."""
    settings: dict[str, Any] = {}
    if "WANDB_INIT_TIMEOUT" not in os.environ:
        settings["init_timeout"] = START_SECONDS
    if cfg.wandb_proxy:
        settings |= {"http_proxy": cfg.wandb_proxy, "https_proxy": cfg.wandb_proxy}
    return settings


def _tell_offline(service: str, error: Exception) -> None:
    print(
        f"WARNING: no connection to {service} ({type(error).__name__}: {error})\n"
        f"         metrics for it are kept in the run's folder; send them with {service} sync",
        file=sys.stderr,
        flush=True,
    )


def _finish(service: str, finish: Callable[[], object], where: str) -> None:
    """Wait until a service has everything, but not for a server that is gone.

    Raises:
        TimeoutError: it does not have it by then; says how to send the rest.
    """
    try:
        in_thread(finish, FINISH_SECONDS)
    except StillRunning:
        raise TimeoutError(
            f"its server has not taken everything within {FINISH_SECONDS:g} s; send the rest with "
            f"{service} sync {where}"
        ) from None


class StillRunning(TimeoutError):
    """What was asked for goes on, in a thread that nobody waits for."""


def in_thread(function: Callable[[], Result], seconds: float | None = None) -> Result:
    """Call a function in a thread of its own and return what it returns, or raise what it raises.

    Args:
        function: without arguments.
        seconds: how long to wait; None is for ever. What is not done by then is left behind.

    Raises:
        StillRunning: it takes longer.
    """
    done: Future[Result] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StillRunning(f"not done after {seconds:g} s")
    return done.result()


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
