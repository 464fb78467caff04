"""A training as a user starts it, for benchmarks of cells: `rlinf train RECIPE`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from answer import serve


class Training:
    """Runs recipes, each in a process and a cluster of its own."""

    def train(
        self,
        recipe: str,
        overrides: list[str],
        collect: dict[str, Any] | None = None,
        data: str = "",
    ) -> dict[str, Any]:
        """Train, and read what the run has written.

        Args:
            recipe: its name.
            overrides: what to change in it.
            collect: `recipe` and `overrides` of `rlinf collect`, which then comes first.
            data: override that tells the training where the data are, with {} for the folder.

        Returns:
            See `read_run`; and `wall_seconds` of the training, from the command to its end.
        """
        with tempfile.TemporaryDirectory() as place:
            if collect is not None:
                folder = f"collect.save_dir={place}/data"
                _run("collect", collect["recipe"], [*collect["overrides"], folder], place)
                overrides = [*overrides, data.format(f"{place}/data")]
            begin = time.perf_counter()
            _run("train", recipe, [*overrides, f"runner.run_dir={place}/run"], place)
            seconds = time.perf_counter() - begin
            return {"wall_seconds": seconds, **read_run(Path(place) / "run")}

    def stop(self) -> None:
        """Nothing is to be ended."""


def read_run(folder: Path) -> dict[str, Any]:
    """Return what a finished run has written.

    Returns:
        `env_steps` before evaluations (without rollouts: 0), their `episodes`, `returns` and
        `success`; `updates`, gradient steps; `labels`, actions that were cloned; `demo_episodes`;
        `training_seconds` of rollouts and updates and `update_seconds` of updates alone.
    """
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = {line["step"]: line for line in lines if "time/step" in line}
    evaluated = {line["step"]: line for line in lines if line.get("eval/episodes")}
    found = sorted(set(evaluated) & set(trained))
    last = trained[max(trained)]
    return {
        "env_steps": [int(trained[step].get("env/total_steps", 0)) for step in found],
        "episodes": [int(evaluated[step]["eval/episodes"]) for step in found],
        "returns": [evaluated[step]["eval/return"] for step in found],
        "success": [evaluated[step].get("eval/success_once", 0.0) for step in found],
        "updates": summary["gradient_updates"],
        "labels": int(last.get("train/dagger/labels", last.get("train/data/samples", 0))),
        "demo_episodes": summary.get("demo_episodes", 0),
        "training_seconds": sum(line["time/step"] for line in trained.values()),
        "update_seconds": sum(line["time/training"] for line in trained.values()),
    }


def _run(command: str, recipe: str, overrides: list[str], place: str) -> None:
    # The settings of a user, who has set no threads.
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    arguments = [sys.executable, "-m", "rlinf.cli", command, recipe, *overrides]
    done = subprocess.run(arguments, env=env, stdout=sys.stderr, cwd=place)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of {' '.join(arguments)}")


if __name__ == "__main__":
    serve(Training())
