"""An agent recipe with SmolLM2: does it learn, how fast, and beside a plain loop of requests?"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.request_loop import Played, RequestLoop
from benchmarks.gpu_parts.settings import Row, Settings
from rlinf.config import build_config, validate_cfg
from rlinf.hybrid_engines.export import export_checkpoint

EPISODES, SECONDS = 64, 60.0
"""Most episodes of a plain loop, and the time after which no other one begins."""

TINY = (
    "actor.model.precision=fp32",
    "weight_syncer.bucket.bucket_dtype=null",
    "rollout.hf.paged_cache=true",
    "rollout.max_running_requests=8",
    "data.rollout_batch_size=2",
    "data.val_size=4",
    "algorithm.group_size=2",
    "actor.supervised.steps=2",
    "actor.supervised.batch_size=2",
)


def measure_recipe(recipe: str, settings: Settings) -> Iterator[Row]:
    """Train, and play episodes of the trained model one after the other.

    Args:
        recipe: Name of an agent recipe.
        settings: With `smollm2`; `steps` and `overrides` change the recipe.

    Yields:
        A row before reinforcement learning, one per evaluation, one about the speed of training,
        and two of plain loops, with the reuse of prefixes and without.

    Raises:
        ValueError: The weights are missing.
    """
    if settings.smollm2 is None:
        raise ValueError(
            f"the part {recipe} needs --smollm2 FOLDER; `rlinf fetch smollm2 --out FOLDER` makes it"
        )
    steps = 1 if settings.tiny else settings.steps
    overrides = [*TINY] if settings.tiny else []
    overrides += [] if steps is None else [f"runner.max_steps={steps}"]
    overrides += settings.overrides
    begin = time.perf_counter()
    folder = _train(recipe, settings, overrides)
    minutes = (time.perf_counter() - begin) / 60
    lines = _lines(folder)
    scored = [line for line in lines if "eval/pass@1" in line]
    for number, line in enumerate(scored):
        yield {"what": "after" if number else "before", "step": line["step"], **scores(line)}
    yield {"what": "episodes in flight", **speed(lines), "minutes": round(minutes, 1)}
    trained = export_checkpoint(str(folder), "hf", settings.out / f"{recipe}_trained")
    for what, further in (
        ("one after the other", []),
        ("the same, without reuse", ["rollout.hf.reuse_prefixes=false"]),
    ):
        path = f"actor.model.model_path={trained}"
        cfg = validate_cfg(build_config(recipe, [*overrides, *further, path]))
        loop = RequestLoop(cfg)
        try:
            played = loop.play(2 if settings.tiny else EPISODES, SECONDS)
        finally:
            loop.close()
        yield {"what": what, "in flight": 1, **of_loop(played)}
        del loop


def scores(line: Mapping[str, Any]) -> Row:
    """Return what an evaluation found."""
    low, high = line["eval/pass@1_low"], line["eval/pass@1_high"]
    row: Row = {
        "held-out pass@1": round(line["eval/pass@1"], 3),
        "95 %": f"{low:.3f} to {high:.3f}",
    }
    names = {name.split("/")[1]: name for name in line if name.count("/") == 2}
    row |= {task: round(line[name], 3) for task, name in names.items() if "pass@1" in name}
    if "eval/pass@1_no_tools" in line:
        row["no tools"] = round(line["eval/pass@1_no_tools"], 3)
    row["tool calls"] = round(line["eval/tool_calls"], 2)
    row["tool errors"] = round(line["eval/tool_errors"], 2)
    return row


def speed(lines: list[dict[str, Any]]) -> Row:
    """Return how fast all training steps were, updates included, and medians over them."""
    made = [line for line in lines if "time/step" in line]

    def middle(name: str) -> float:
        return round(statistics.median(line[name] for line in made), 3)

    # Engines work ahead of the learner, so only whole steps tell how many episodes there are.
    seconds = sum(line["time/step"] for line in made)
    row = {
        "in flight": int(made[-1]["rollout/samples"]),
        "episodes/s": round(sum(line["rollout/samples"] for line in made) / seconds, 1),
        "tokens/s": round(sum(line["rollout/tokens"] for line in made) / seconds),
        "tokens read per episode": round(middle("rollout/prompt_tokens")),
    }
    if all("rollout/computed_tokens" in line for line in made):
        row["of these computed"] = round(middle("rollout/computed_tokens"))
        row["prefix reuse"] = _reuse(row["of these computed"], row["tokens read per episode"])
    row |= {
        "s/step": middle("time/step"),
        "generate s": middle("time/generate"),
        "training s": middle("time/training"),
        "sync s": middle("time/sync_weights"),
        "failed": round(sum(line["rollout/failed"] for line in made) / len(made), 4),
    }
    return row


def of_loop(played: Played) -> Row:
    """Return the same of a plain loop."""
    count = len(played.trajectories)
    row = {
        "episodes/s": round(count / played.seconds, 2),
        "tokens/s": round(played.written / played.seconds),
        "tokens read per episode": round(played.read / count),
    }
    if played.computed is not None:
        row["of these computed"] = round(played.computed / count)
        row["prefix reuse"] = _reuse(played.computed, played.read)
    return row | {
        "failed": round(sum(each.ending == "failed" for each in played.trajectories) / count, 4),
    }


def _reuse(computed: float, read: float) -> float:
    return round(1 - computed / read, 3)


def _train(recipe: str, settings: Settings, overrides: list[str]) -> Path:
    """Run the recipe; return the folder of the run."""
    folder = settings.out / recipe
    arguments = [sys.executable, "-m", "rlinf.cli", "train", recipe, *overrides]
    arguments += [f"actor.model.model_path={settings.smollm2.resolve()}"]
    arguments += ["runner.logger.logger_backends=[jsonl]", "runner.progress=plain"]
    arguments += ["runner.eval_at_start=true", f"runner.run_dir={folder}"]
    subprocess.run(arguments, check=True)
    return folder


def _lines(folder: Path) -> list[dict[str, Any]]:
    found = sorted(folder.rglob("metrics*.jsonl"))
    return [json.loads(line) for line in found[-1].read_text().splitlines()]
