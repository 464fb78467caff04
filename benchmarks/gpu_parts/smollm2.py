"""GRPO of SmolLM2-135M-Instruct on a task of reasoning-gym: does it learn, and how fast?"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.settings import Row, Settings

RECIPE = "smollm2_grpo"


def measure(settings: Settings) -> Iterator[Row]:
    """A row before training, one per evaluation, and one about speed."""
    if settings.smollm2 is None:
        raise ValueError(
            "the part smollm2 needs --smollm2 FOLDER; `rlinf fetch smollm2 --out FOLDER` makes it"
        )
    overrides = [f"actor.model.model_path={settings.smollm2.resolve()}"]
    overrides += ["runner.logger.logger_backends=[jsonl]", "runner.progress=plain"]
    steps = settings.steps
    if settings.tiny:
        steps = 1
        overrides += ["data.rollout_batch_size=2", "algorithm.group_size=2", "data.val_size=4"]
        overrides += ["algorithm.sampling_params.max_new_tokens=8", "actor.model.precision=fp32"]
        overrides += ["rollout.max_running_requests=8", "weight_syncer.bucket.bucket_dtype=null"]
    before, _ = _run(settings, "eval", "before", overrides)
    yield {"step": 0, **_scores(before[-1])}
    overrides += [] if steps is None else [f"runner.max_steps={steps}"]
    begin = time.perf_counter()
    lines, folder = _run(settings, "train", "training", overrides)
    yield from ({"step": line["step"], **_scores(line)} for line in lines if "eval/pass@1" in line)
    made = [line for line in lines if "time/step" in line]

    def middle(name: str) -> float:
        return round(statistics.median(line[name] for line in made), 3)

    yield {
        "step": len(made),
        "score": round(made[-1]["rollout/score"], 3),
        "score of step 1": round(made[0]["rollout/score"], 3),
        "s/step": middle("time/step"),
        "samples/s": middle("rollout/samples_per_second"),
        "generate s": middle("time/generate"),
        "training s": middle("time/training"),
        "sync s": middle("time/sync_weights"),
        "minutes": round((time.perf_counter() - begin) / 60, 1),
        "folder": str(folder),
    }


def _run(
    settings: Settings, command: str, name: str, overrides: list[str]
) -> tuple[list[dict[str, Any]], Path]:
    """Run the recipe; return its metrics and its folder."""
    folder = settings.out / f"smollm2_{name}"
    place = [
        f"runner.run_dir={folder}",
    ]
    arguments = [sys.executable, "-m", "rlinf.cli", command, RECIPE, *overrides, *place]
    subprocess.run(arguments, check=True)
    found = sorted(folder.rglob("metrics*.jsonl"))
    return [json.loads(line) for line in found[-1].read_text().splitlines()], folder


def _scores(line: dict[str, Any]) -> Row:
    low, high = line.get("eval/pass@1_low"), line.get("eval/pass@1_high")
    return {
        "held-out pass@1": round(line["eval/pass@1"], 3),
        "95 %": f"{low:.3f} to {high:.3f}" if low is not None else "",
    }
