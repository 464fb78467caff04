"""Begins a run: finds what it goes on from, and a folder that is its own and locked.

A run that is refused here has written and started nothing.
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlinf.config import ConfigError, to_plain, validate_cfg
from rlinf.runners.config_difference import describe, differences
from rlinf.utils.checkpoint import Checkpoint, CheckpointError, CheckpointStore
from rlinf.utils.checkpoint.store import newest_run
from rlinf.utils.runs import (
    RunLock,
    new_evaluation_folder,
    new_run_folder,
    point_latest_to,
)
from rlinf.utils.runs.folders import CHECKPOINTS, is_run
from rlinf.utils.runs.provenance import record_code

_PACKAGES = ("rlinf", "torch", "ray", "numpy", "gymnasium", "mujoco", "metaworld", "transformers")

_locks: dict[str, RunLock] = {}
"""By folder: the runs that this process has begun."""


class RunRefused(RuntimeError):
    """A run cannot begin where the config says."""


def begin_run(cfg: Any) -> Any:
    """Choose the folder of a run, lock it, and find the checkpoint to go on from.

    Args:
        cfg: checked configuration.

    Returns:
        The configuration with `runner.run_dir` and the path of the checkpoint in
        `runner.resume_dir`; as it is if the run has been begun already.

    Raises:
        CheckpointError: the checkpoint is not there or damaged, or is of another configuration.
        RunRefused: the folder has another run, or cannot be written.
        RunInUse: another run writes into the folder.
    """
    if is_begun(cfg):
        return cfg
    experiment = experiment_folder(cfg)
    run, checkpoint = _go_on_from(cfg, experiment)
    try:
        folder = _choose(cfg, experiment, run, checkpoint).resolve()
        _locks[str(folder)] = RunLock(folder)
    except OSError as error:
        raise RunRefused(
            f"nothing can be written to {error.filename or experiment}: {error.strerror or error}; "
            "set runner.logger.log_path, or runner.run_dir, to a folder of yours"
        ) from None
    if not cfg.runner.only_eval and folder.parent == experiment.resolve():
        point_latest_to(folder)
    record_code(folder)
    # Workers may have another current folder.
    resume_dir = None if checkpoint is None else str(checkpoint.path.resolve())
    return with_runner_keys(cfg, run_dir=str(folder), resume_dir=resume_dir)


def is_begun(cfg: Any) -> bool:
    """Return whether this process has begun the run of a configuration."""
    return cfg.runner.run_dir is not None and cfg.runner.run_dir in _locks


def end_run(folder: Path) -> None:
    """Let others write into the folder of a run that has ended."""
    lock = _locks.pop(str(folder), None)
    if lock is not None:
        lock.release()


def experiment_folder(cfg: Any) -> Path:
    """Return `<log_path>/<experiment_name>`, where the runs of an experiment are."""
    return Path(cfg.runner.logger.log_path) / cfg.runner.logger.experiment_name


def run_folder(cfg: Any) -> Path:
    """Return where a run that has been begun writes.

    Raises:
        RunRefused: it has not: `begin_run`, or `run_with_restarts`, comes first.
    """
    if cfg.runner.run_dir is None:
        raise RunRefused("the run has no folder yet: call begin_run, or run_with_restarts, first")
    return Path(cfg.runner.run_dir)


def checkpoint_folder(cfg: Any) -> Path:
    """Return where a run that has been begun keeps its checkpoints.

    That is `<run>/checkpoints`. With `actor.checkpoint_save_path` it is a link to a folder there.
    """
    folder = run_folder(cfg) / CHECKPOINTS
    actor = cfg.get("actor")
    place = None if actor is None else actor.checkpoint_save_path
    if place is None or folder.exists() or cfg.runner.only_eval:
        return folder
    target = Path(place).resolve() / cfg.runner.logger.experiment_name / run_folder(cfg).name
    (target / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    folder.symlink_to(target / CHECKPOINTS)
    return folder


def with_runner_keys(cfg: Any, **values: Any) -> Any:
    """Return a copy of a configuration with other values of some keys of the runner."""
    copy = cfg.copy()
    readonly = OmegaConf.is_readonly(copy)
    OmegaConf.set_readonly(copy, False)
    for key, value in values.items():
        copy.runner[key] = value
    OmegaConf.set_readonly(copy, readonly)
    return copy


def recipe_name(cfg: Any) -> str:
    """Return the name of the recipe that a run is of, as `rlinf train` takes it."""
    from hydra.core.hydra_config import HydraConfig

    name = HydraConfig.get().job.config_name if HydraConfig.initialized() else None
    # `rlinf eval` gives the config of a checkpoint that name.
    return cfg.runner.logger.experiment_name if name in (None, "checkpoint") else name


def given_overrides() -> list[str]:
    """Return the overrides that a run was started with, as `rlinf train` takes them."""
    from hydra.core.hydra_config import HydraConfig

    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return [text.lstrip("+") for text in given]


def versions() -> dict[str, str]:
    """Return the versions of what matters for the numbers."""
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def _go_on_from(cfg: Any, experiment: Path) -> tuple[Path | None, Checkpoint | None]:
    """Return the run to go on with, if it is `auto`, and the checkpoint to go on from."""
    wanted = cfg.runner.resume_dir
    if wanted is None:
        return None, None
    run: Path | None = None
    if wanted != "auto":
        checkpoint: Checkpoint | None = Checkpoint.open(wanted)
    else:
        given = cfg.runner.run_dir
        run = Path(given) if given is not None else newest_run(experiment)
        checkpoint = None if run is None else CheckpointStore(run / CHECKPOINTS).latest()
        if checkpoint is None:
            place = given if given is not None else f"any run of {experiment}"
            print(f"no checkpoint in {place}: the run begins at step 0", flush=True)
            return None, None
    assert checkpoint is not None
    _check_config(cfg, checkpoint)
    return run, checkpoint


def _check_config(cfg: Any, checkpoint: Checkpoint) -> None:
    then = _with_newer_keys(checkpoint.manifest["config"])
    changed = differences(then, to_plain(cfg), cfg.runner.only_eval)
    if changed and not cfg.runner.resume_force:
        raise CheckpointError(
            f"{checkpoint.path} was made with another configuration:\n{describe(changed)}\n"
            "Set these keys back, or set runner.resume_force=true to go on with the new ones."
        )
    if changed:
        print(f"resuming with another configuration:\n{describe(changed)}", flush=True)


def _with_newer_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the keys that did not exist when it was written, at their defaults."""
    then = config.get("runner", {})
    only_eval = then.get("only_eval", False)
    # A run that was trained before a check of training was made is a run all the same.
    for asked in (only_eval, True):
        runner = {**then, "only_eval": asked}
        try:
            found = to_plain(validate_cfg({**config, "runner": runner}))
        except ConfigError:
            continue
        found["runner"]["only_eval"] = only_eval
        return found
    # It is from a version with other keys: what differs is told as it stands.
    return config


def _choose(cfg: Any, experiment: Path, run: Path | None, checkpoint: Checkpoint | None) -> Path:
    given, only_eval = cfg.runner.run_dir, cfg.runner.only_eval
    if given is not None:
        folder = Path(given)
        inside = checkpoint is not None and checkpoint.path.resolve().is_relative_to(
            folder.resolve() / CHECKPOINTS
        )
        if is_run(folder) and not inside and not only_eval:
            raise RunRefused(
                f"runner.run_dir={given} has a run already, which would be overwritten; name "
                "another folder, or go on with that run by runner.resume_dir=auto"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    if only_eval:
        if checkpoint is None:
            return new_run_folder(experiment)
        return new_evaluation_folder(run or checkpoint.run_folder, f"eval_{checkpoint.path.name}")
    return run if run is not None else new_run_folder(experiment)
