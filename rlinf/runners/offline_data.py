"""Looks at the datasets of a run before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.rewards import check_rewards
from rlinf.data.lerobot.errors import DatasetError
from rlinf.runners.run_folder import recipe_name
from rlinf.workers.actor.registry import learner_of


def require_datasets(cfg: Any) -> None:
    """Refuse a run whose datasets are not there, or whose learner does not learn from data.

    Workers on other machines may see other folders, so only runs on one machine are looked at.

    Args:
        cfg: checked configuration of task type `offline`, `sft` or `reward_model`.

    Raises:
        SystemExit: says what is missing and how to make it.
    """
    learner = learner_of(cfg)
    if not learner.offline:
        raise SystemExit(
            f"error: algorithm.loss_type {cfg.algorithm.loss_type} learns from rollouts, and "
            f"runner.task_type {cfg.runner.task_type} has none; use embodied_bc or offline_iql, or "
            "runner.task_type: embodied"
        )
    if cfg.cluster.num_nodes > 1 or cfg.runner.only_eval:
        return
    data = cfg.data
    try:
        DemonstrationFolders(data.train_data_paths, data.observations, data.max_episodes)
    except DatasetError as error:
        missing = [path for path in data.train_data_paths if not Path(path).exists()]
        said = f"there is no dataset at {missing[0]}{_how(cfg, missing[0])}" if missing else error
        raise SystemExit(f"error: data.train_data_paths: {said}") from None


def require_demonstrations(cfg: Any) -> None:
    """Refuse a run whose demonstrations are not there, or have another reward.

    Workers on other machines may see other folders, so only runs on one machine are looked at.

    Args:
        cfg: checked configuration of task type `embodied`.

    Raises:
        SystemExit: says what is missing, or differs, and what to do.
    """
    section = cfg.algorithm.get("demo_buffer")
    if section is None or cfg.cluster.num_nodes > 1 or cfg.runner.only_eval:
        return
    path = section.load_path
    if not Path(path).expanduser().exists():
        said = f"there is no dataset at {path}{_how(cfg, path)}"
        raise SystemExit(f"error: algorithm.demo_buffer.load_path: {said}")
    try:
        # Of a dataset that does not say, the learner tells.
        check_rewards(path, cfg.env.train, lambda text: None)
    except DatasetError as error:
        raise SystemExit(f"error: algorithm.demo_buffer.load_path: {error}") from None


def _how(cfg: Any, path: str) -> str:
    """Return how to make a dataset, if the config is one to collect with."""
    if cfg.env is None or cfg.env.train is None:
        return ""
    own = cfg.collect is not None and cfg.collect.save_dir == path
    where = "" if own else f" collect.save_dir={path}"
    return f"; make it with: rlinf collect {recipe_name(cfg)}{where}"
