"""Runs on the disk, written as runs write them, without training anything."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import yaml

from rlinf.utils.runs import RunSummary, point_latest_to

CONFIG = {
    "runner": {
        "task_type": "embodied",
        "seed": 42,
        "max_epochs": 30,
        "run_dir": None,
        "logger": {"log_path": "logs", "experiment_name": "tiny_ppo"},
    },
    "algorithm": {"gamma": 0.97},
    "actor": {"optim": {"lr": 0.001}, "model": {"hidden_sizes": [128, 128]}},
    "env": {"train": {"seed": None}, "eval": {"seed": 100000}},
}
EVALUATION = {
    "eval/episodes": 40.0,
    "eval/success_once": 0.975,
    "eval/success_once_low": 0.871,
    "eval/success_once_high": 0.996,
    "eval/return": 512.25,
}
TOTALS = {"global_step": 30, "env_steps": 48_000, "env_steps_per_second": 991.2}
EPOCH = time.mktime((2025, 11, 17, 9, 30, 0, 0, 0, -1))


def config_with(**changes: Any) -> dict[str, Any]:
    """The configuration with other values: `runner__seed=1` is `runner.seed`."""
    config = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        *path, key = name.split("__")
        node = config
        for part in path:
            node = node[part]
        node[key] = value
    return config


def make_run(
    folder: Path,
    status: str | None = "finished",
    config: dict[str, Any] | None = CONFIG,
    began: float = EPOCH,
    metrics: list[dict[str, Any]] | None = None,
    **facts: Any,
) -> Path:
    """A run; with status None it has begun, and said nothing more."""
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    seed = (config or CONFIG)["runner"]["seed"]
    summary = RunSummary(folder, recipe="tiny_ppo", seed=seed, began=began)
    if status is not None:
        summary.write(status=status, **facts)
    if metrics is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    return folder


def finished(folder: Path, success: float = 0.975, **more: Any) -> Path:
    """A run that was evaluated at its end, and is the newest of its experiment."""
    evaluation = EVALUATION | {"eval/success_once": success}
    run = make_run(folder, **({"evaluation": evaluation} | TOTALS | more))
    point_latest_to(run)
    return run


def checkpoint(run: Path, step: int, size: int) -> Path:
    """A checkpoint with one file."""
    folder = run / "checkpoints" / f"global_step_{step}"
    folder.mkdir(parents=True)
    (folder / "weights.pt").write_bytes(b"w" * size)
    return folder
