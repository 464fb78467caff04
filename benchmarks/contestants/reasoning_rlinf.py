"""GRPO as a user starts it, for `benchmarks.reasoning`: `rlinf train RECIPE`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import reasoning_model
from answer import serve

TIMES = ("time/generate", "time/training", "time/sync_weights")
FIRST = {
    "score": "rollout/score",
    "length": "rollout/response_length",
    "gap": "train/agreement/logprob_mean",
}
"""What the first step is known by: nothing was trained before, so equal engines give equal ones."""


class DeviceMemory:
    """Looks at how much of a GPU all processes take together, while a job runs."""

    def __init__(self) -> None:
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> DeviceMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            # There is no GPU: 0 bytes.
            return
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._over.wait(0.05):
            self.peak = max(self.peak, pynvml.nvmlDeviceGetMemoryInfo(device).used)
        pynvml.nvmlShutdown()


class Training:
    """Runs recipes, each in a process and a cluster of its own."""

    def make(self, folder: str, recipe: str, prompts: int) -> int:
        """See `reasoning_model.make_arithmetic`."""
        return reasoning_model.make_arithmetic(Path(folder), recipe, prompts)

    def make_random(self, folder: str, shape: str, prompts: int, length: int) -> int:
        """See `reasoning_model.make_random`."""
        return reasoning_model.make_random(Path(folder), shape, prompts, length)

    def prepare(self, folder: str, recipe: str, extension: str | None = None) -> str:
        """Remember what to train.

        Args:
            folder: what `make` made.
            recipe: its name, or path to a YAML file.
            extension: module that registers further rewards.

        Returns:
            How it computes.
        """
        self._folder, self._recipe, self._extension = folder, recipe, extension
        return "rlinf train"

    def train(self, updates: int, overrides: list[str]) -> dict[str, float]:
        """Train from the model of the folder, and read what the run has written.

        Args:
            updates: how many count; one more, before them, does not.
            overrides: what to change in the recipe.

        Returns:
            Seconds per update; medians of generation, training and weight sync; mean length of
            responses and mean score; both of the first step, and how far log-probabilities of
            engine and actor were apart in it, and most in any step that was looked at; most bytes
            taken of a GPU.
        """
        # The settings of a user, who has set no threads.
        env = {
            k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        }
        if self._extension is not None:
            env["RLINF_EXT_MODULE"] = self._extension
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "rlinf.cli", "train", self._recipe, *overrides]
            command += [
                "~actor.model.hf_config",
                f"actor.model.model_path={self._folder}",
                f"actor.tokenizer.tokenizer_model={self._folder}",
                "actor.supervised.steps=0",
                f"runner.max_steps={updates + 1}",
                "runner.val_check_interval=-1",
                "runner.progress=off",
                f"runner.run_dir={place}/run",
            ]
            with DeviceMemory() as memory:
                done = subprocess.run(
                    command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            if done.returncode:
                said = f"exit code {done.returncode} of {' '.join(command)}"
                raise RuntimeError(f"{said}\n{done.stdout[-4000:]}")
            summary = json.loads((Path(place) / "run" / "summary.json").read_text())
            lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
        first, *rest = [line for line in map(json.loads, lines) if "time/step" in line]
        medians = {
            name.rpartition("/")[2]: statistics.median(line[name] for line in rest)
            for name in TIMES
        }
        gaps = [line[FIRST["gap"]] for line in (first, *rest) if FIRST["gap"] in line]
        return {
            # All of the loop but its first step, what happens between steps included.
            "seconds": (summary["training_seconds"] - first["time/step"]) / updates,
            "length": statistics.mean(line["rollout/response_length"] for line in rest),
            "score": statistics.mean(line["rollout/score"] for line in rest),
            **medians,
            **{f"first {name}": first[key] for name, key in FIRST.items() if key in first},
            **({"largest gap": max(gaps)} if gaps else {}),
            "device_bytes": memory.peak,
        }

    def stop(self) -> None:
        """Nothing is to be ended."""


if __name__ == "__main__":
    serve(Training())
