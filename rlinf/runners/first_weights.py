"""Looks for the weights that a run begins with, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.config import ConfigError
from rlinf.config.load import find_config
from rlinf.runners.run_folder import RunRefused


def require_first_weights(cfg: Any) -> None:
    """Refuse a run that begins with weights that are not there.

    Workers on other machines may see other folders, so only runs on one machine are looked at.

    Args:
        cfg: checked configuration.

    Raises:
        RunRefused: says what is missing and how to make it.
    """
    if cfg.cluster.num_nodes > 1:
        return
    named = {"runner.ckpt_path": cfg.runner.ckpt_path}
    if cfg.get("actor") is not None:
        named["actor.checkpoint_load_path"] = cfg.actor.checkpoint_load_path
    for key, path in named.items():
        if path is not None and not Path(path).expanduser().exists():
            raise RunRefused(
                f"{key}: there are no weights at {path}{_how(cfg, Path(path))}; it takes a "
                "checkpoint, a run, an exported folder or a file of weights, and null begins with "
                "fresh ones"
            )


def _how(cfg: Any, path: Path) -> str:
    """Return how to make weights, if they are where runs of a recipe go."""
    name = path.name
    if path.parent != Path(cfg.runner.logger.log_path):
        return ""
    try:
        find_config(name, None)
    except ConfigError:
        return ""
    return f"; make them with: rlinf train {name}"
