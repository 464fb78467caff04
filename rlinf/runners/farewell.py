"""What a run says at its end: where everything is, and what to do next that was not just done."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlinf.config.task_types import LANGUAGE
from rlinf.envs.metaworld.tasks import SETS
from rlinf.utils.numbers import number, percent
from rlinf.utils.runs.folders import SAMPLES, shown

_ANOTHER = {
    "metaworld": ("task", ("reach-v3", "button-press-v3")),
    "gymnasium": ("id", ("Walker2d-v5", "HalfCheetah-v5")),
}
"""By env type: the key that names what is learned, and what can be learned with the same recipe."""
_POOR = 0.5
"""Success rate below which a run is worth going on with."""


def places(cfg: Any, folder: Path) -> str:
    """Say where a training run has written, and how to look at it."""
    name = shown(folder)
    said = [f"everything is in {name}"]
    if (folder / SAMPLES).exists():
        said.append(f"responses are in {SAMPLES}")
    if (folder / "report.html").exists():
        said.append(f"report.html is older than this: rlinf report {name} writes it again")
    else:
        said.append(f"one page of it: rlinf report {name}")
    if "tensorboard" in cfg.runner.logger.logger_backends:
        said.append(f"curves: tensorboard --logdir {name}")
    return "; ".join(said)


def next_step(cfg: Any, folder: Path, facts: Mapping[str, Any]) -> str:
    """Say what to do with the policy, or what else to learn.

    Args:
        cfg: checked configuration of the run.
        folder: of the run.
        facts: of its summary.
    """
    name, recipe = shown(folder), facts["recipe"]
    if cfg.runner.task_type in LANGUAGE:
        if facts.get("checkpoint") and cfg.runner.task_type == "agent":
            return f"next: see what it does with its tools: rlinf report {name}"
        if facts.get("checkpoint"):
            return f"next: ask it something: rlinf chat {name}"
        return "next: another recipe, of those in rlinf train --list"
    if _is_poor(facts) and facts.get("checkpoint") and _length_is_free(cfg):
        limits = {key: cfg.runner[key] for key in ("max_epochs", "max_steps")}
        longer = {f"runner.{key}": 2 * limit for key, limit in limits.items() if limit > 0}
        return f"next: train it longer: {go_on_command(folder, facts, longer)}"
    key, known = _ANOTHER.get(cfg.env.train.env_type, ("", ()))
    if _is_bound_to_its_tasks(cfg):
        known = ()
    others = [value for value in known if value != cfg.env.train.get(key)]
    if others:
        return f"next: another {key}: rlinf train {recipe} env.train.{key}={others[0]}"
    return "next: another recipe, of those in rlinf train --list"


def _is_bound_to_its_tasks(cfg: Any) -> bool:
    """Return whether the run has several tasks, or began with what was made for its own."""
    train, demonstrations = cfg.env.train, cfg.algorithm.get("demo_buffer")
    return bool(
        train.get("tasks")
        or str(train.get("task")).upper() in SETS
        or cfg.runner.ckpt_path
        or (demonstrations and demonstrations.load_path)
    )


def go_on_command(
    folder: Path, facts: Mapping[str, Any], changes: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the command that goes on with a run, in its folder.

    Args:
        folder: of the run.
        facts: of its summary.
        changes: keys of the configuration that are to be other than they were.
    """
    own = {"runner.run_dir": shown(folder), "runner.resume_dir": "auto", **changes}
    kept = [text for text in facts.get("overrides") or () if text.partition("=")[0] not in own]
    words = [facts["recipe"], *kept, *(f"{key}={value}" for key, value in own.items())]
    return f"rlinf train {shlex.join(words)}"


def before_training(facts: Mapping[str, Any]) -> str | None:
    """Say what the first evaluation had found; None if there was none."""
    found = facts.get("initial_evaluation") or {}
    for key, words, show in (
        ("eval/success_once", "success", percent),
        ("eval/pass@1", "pass@1", percent),
        ("eval/return", "return", number),
    ):
        if key in found:
            return f"before the training: {words} {show(found[key])}"
    return None


def _is_poor(facts: Mapping[str, Any]) -> bool:
    rate = (facts.get("evaluation") or {}).get("eval/success_once")
    return rate is not None and rate < _POOR


def _length_is_free(cfg: Any) -> bool:
    """Return whether a run may become longer: not if its learning rate depends on its length."""
    return cfg.actor.optim.lr_scheduler == "constant"
