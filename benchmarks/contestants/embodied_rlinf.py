"""Embodied training as a user starts it, for `benchmarks.embodied`: `rlinf train RECIPE`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from answer import serve

TIMES = ("time/generate_rollouts", "time/env/env_step", "time/rollout/predict")


class Training:
    """Runs recipes, each in a process and a cluster of its own."""

    def train(
        self, recipe: str, overrides: list[str], extension: str | None = None
    ) -> dict[str, float]:
        """Train, and read what the run has written.

        Args:
            recipe: its name.
            overrides: what to change in it.
            extension: module that registers further models.

        Returns:
            Env steps per second end to end (`total`) and in the rollout phase (`rollout`); seconds
            per update (`update`); medians over the steps of `generate_rollouts`, `env_step` and
            `predict`, which are seconds per rollout.
        """
        # The settings of a user, who has set no threads.
        env = {
            k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        }
        if extension is not None:
            env["RLINF_EXT_MODULE"] = extension
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "rlinf.cli", "train", recipe, *overrides]
            command += [f"runner.run_dir={place}/run"]
            done = subprocess.run(command, env=env, stdout=sys.stderr)
            if done.returncode:
                raise RuntimeError(f"exit code {done.returncode} of {' '.join(command)}")
            summary = json.loads((Path(place) / "run" / "summary.json").read_text())
            lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if "time/step" in line]
        updates = [line["time/advantages"] + line["time/training"] for line in steps]
        medians = {
            name.rpartition("/")[2]: statistics.median(line[name] for line in steps)
            for name in TIMES
        }
        return {
            "total": summary["env_steps_per_second"],
            "rollout": summary["env_steps_per_second_in_rollout"],
            "update": statistics.median(updates),
            **medians,
        }

    def stop(self) -> None:
        """Nothing is to be ended."""


if __name__ == "__main__":
    serve(Training())
