"""Whole GRPO steps of a random model, with our engine and another; they must agree in scores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_parts.grpo import LONG, OURS, RECIPE
from benchmarks.gpu_parts.settings import TINY, Row, Settings
from benchmarks.harness import ContestantFailed, Entry, live, ours


def measure(settings: Settings) -> Iterator[Row]:
    """A row per engine."""
    yield from compare(settings, "vllm")


def compare(settings: Settings, engine: str) -> Iterator[Row]:
    """A row for an engine, one for the engine that sleeps in between, and one for ours."""
    tiny = settings.tiny
    shape = TINY if tiny else settings.sizes[0]
    groups, samples, prompt, tokens = (2, 2, 8, 8) if tiny else (32, 8, 128, 256)
    entries = [Entry(OURS, "reasoning_rlinf.py", env=ours("").env)]
    with tempfile.TemporaryDirectory() as place, live(entries, Path(place)) as (made,):
        folder = str(Path(place) / "model")
        made.ask("make_random", LONG, folder=folder, shape=shape, prompts=4 * groups, length=prompt)
        made.ask("prepare", folder=folder, recipe=str(RECIPE), extension="benchmarks.parity_reward")
        shaped = [f"data.train_data_paths=[{folder}/prompts.jsonl]"]
        shaped += [f"data.rollout_batch_size={groups}", f"algorithm.group_size={samples}"]
        shaped += [f"algorithm.sampling_params.max_new_tokens={tokens}"]
        if tiny:
            shaped += ["actor.model.model_type=qwen3", "actor.model.precision=fp32"]
            shaped += ["weight_syncer.bucket.bucket_dtype=null"]
            shaped += ["rollout.gpu_memory_utilization=0.1"]
        for name, further in (
            (engine, []),
            (f"{engine}, asleep while the actor trains", ["rollout.enable_offload=true"]),
            ("hf", []),
        ):
            overrides = [*shaped, f"rollout.rollout_backend={name.split(',')[0]}", *further]
            try:
                found = made.ask("train", LONG, updates=1 if tiny else 4, overrides=overrides)
            except ContestantFailed as failure:
                yield {"engine": name, "note": f"failed: {str(failure)[-1500:]}"}
                continue
            yield {
                "engine": name,
                "model": shape,
                "seconds per step": round(found["seconds"], 3),
                "samples/s": round(groups * samples / found["seconds"], 1),
                **{key: round(value, 4) for key, value in found.items() if key != "seconds"},
            }
