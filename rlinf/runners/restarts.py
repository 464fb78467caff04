"""Runs a training job and, if it fails and the config allows, again from its last checkpoint."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rlinf.config import ConfigError, ExtrasMissing, require_extras, to_plain, validate_cfg
from rlinf.runners.first_weights import require_first_weights
from rlinf.runners.run_folder import (
    RunRefused,
    begin_run,
    checkpoint_folder,
    end_run,
    run_folder,
    with_runner_keys,
)
from rlinf.runners.run_summary import begin_summary, end_summary
from rlinf.runners.stop import RunStopped, is_stop
from rlinf.scheduler.cluster.hooks import was_told
from rlinf.scheduler.cluster.lost_nodes import lost_nodes
from rlinf.utils.checkpoint import CheckpointError, CheckpointStore
from rlinf.utils.checkpoint.store import MANIFEST
from rlinf.utils.phases import phases
from rlinf.utils.runs import RunInUse
from rlinf.utils.runs.summary import FAILED, STOPPED, add_to_summary, close_summary

WORKERS = "workers"
"""Folder of a run with the logs and timelines of its workers."""


def run_with_restarts(cfg: Any, job: Callable[[Any], Any]) -> Any:
    """Run a job, and up to `runner.max_restarts` times more if it fails.

    Each further attempt begins with nothing of the failed one but its newest complete checkpoint:
    what comes out equals a run that nothing happened to. What a further attempt cannot change, a
    wrong configuration or checkpoint, ends the run at once.

    Args:
        cfg: checked configuration.
        job: builds cluster, workers and runner of a configuration, and runs them to the end.

    Returns:
        What the job returned.

    Raises:
        SystemExit: the job was stopped, or failed as its failure card has told; or the run was
            refused, as its message tells.
        BaseException: the job failed otherwise.
    """
    try:
        require_extras(to_plain(cfg))
        require_first_weights(cfg)
        cfg = begin_run(cfg)
    except (CheckpointError, ExtrasMissing, RunInUse, RunRefused) as error:
        # Said in full by its message; a traceback would only hide it.
        raise SystemExit(f"error: {error}") from None
    folder = run_folder(cfg)
    phases.begin(cfg.runner.progress, since=psutil.Process().create_time())
    begin_summary(cfg)
    try:
        return _attempt(cfg, job)
    except RunStopped as stopped:
        raise SystemExit(stopped.exit_code) from None
    except KeyboardInterrupt:
        if close_summary(folder, STOPPED):
            print("stopped before the first step", flush=True)
        raise SystemExit(128 + signal.SIGINT) from None
    except BaseException as error:
        status = STOPPED if is_stop(error) else FAILED
        close_summary(folder, status, f"{type(error).__name__}: {error}")
        if was_told(error):
            raise SystemExit(1) from error
        raise
    finally:
        end_summary(folder)
        end_run(folder)


def _attempt(cfg: Any, job: Callable[[Any], Any]) -> Any:
    folder = run_folder(cfg)
    begin = time.time()
    attempt_cfg, restarts = cfg, 0
    while True:
        try:
            result = job(attempt_cfg)
        except CheckpointError as error:
            raise SystemExit(f"error: {error}") from None
        except ConfigError:
            raise
        except Exception as error:
            if restarts >= cfg.runner.max_restarts:
                raise
            restarts += 1
            newest = _newest(checkpoint_folder(cfg), since=begin)
            _announce(error, restarts, cfg.runner.max_restarts, newest)
            _keep_logs(folder, restarts)
            resume_dir = str(newest) if newest is not None else cfg.runner.resume_dir
            attempt_cfg = _on_nodes_left(with_runner_keys(cfg, resume_dir=resume_dir), error)
        else:
            if restarts:
                add_to_summary(folder, restarts=restarts)
            return result


def _on_nodes_left(cfg: Any, error: Exception) -> Any:
    """Return the configuration for the nodes that are left, if its placement allows that.

    Raises:
        Exception: it does not; the failure that ended the run before.
    """
    lost = len(lost_nodes())
    if not lost:
        return cfg
    count = cfg.cluster.num_nodes
    plain = to_plain(cfg)
    plain["cluster"]["num_nodes"] = count - lost
    try:
        fewer = validate_cfg(plain)
    except ConfigError as problem:
        print(
            f"the run cannot go on: {lost} of {count} nodes are lost, and its placement needs "
            f"them. {problem}",
            file=sys.stderr,
            flush=True,
        )
        raise error from None
    print(f"going on with {count - lost} of {count} nodes", file=sys.stderr, flush=True)
    return fewer


def _newest(folder: Path, since: float) -> Path | None:
    """Return the newest whole checkpoint that this run has made."""
    for checkpoint in reversed(CheckpointStore(folder).all()):
        if (checkpoint.path / MANIFEST).stat().st_mtime < since:
            continue
        try:
            return type(checkpoint).open(checkpoint.path).path
        except CheckpointError as error:
            print(f"warning: {error}", file=sys.stderr, flush=True)
    return None


def _announce(error: Exception, restarts: int, most: int, newest: Path | None) -> None:
    where = f"from {newest}" if newest is not None else "from the beginning: no checkpoint yet"
    said = str(error).splitlines()[0] if str(error) else ""
    print(
        f"the run failed ({type(error).__name__}: {said}); restart {restarts} of at most {most}, "
        f"{where}",
        file=sys.stderr,
        flush=True,
    )


def _keep_logs(folder: Path, restarts: int) -> None:
    """Move logs, timelines and failure card of the failed attempt out of the next one's way."""
    logs = folder / WORKERS
    if logs.is_dir():
        target = folder / f"{WORKERS}.failed_{restarts}"
        number = restarts
        while target.exists():
            number += 1
            target = folder / f"{WORKERS}.failed_{number}"
        os.rename(logs, target)
