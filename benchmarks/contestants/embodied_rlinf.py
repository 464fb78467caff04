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

TIMES = {
    "generate_rollouts": ("time/generate_rollouts",),
    "interact": ("time/env/interact",),
    "env_step": ("time/env/env_step",),
    "predict": ("time/rollout/predict", "time/env/predict"),
}
"""Metrics by what they measure; the policy acts in a process of its own, or in that of the envs."""


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
            per update (`update`); medians over the steps of all `TIMES`, seconds per rollout.
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
            name: statistics.median(line[m] for line in steps for m in metrics if m in line)
            for name, metrics in TIMES.items()
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
