"""Whole GRPO steps of a random model, beside TRL's GRPOTrainer on the same model and prompts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_parts.settings import TINY, Row, Settings
from benchmarks.harness import Contestant, ContestantFailed, Entry, live, ours

RECIPE = Path(__file__).with_name("grpo.yaml")
OURS, TRL = "ours", "TRL"
LONG = 400.0
"""Seconds that no contestant takes."""


def measure(settings: Settings) -> Iterator[Row]:
    """A row per contestant."""
    tiny = settings.tiny
    shape = TINY if tiny else settings.sizes[0]
    groups, samples, prompt, tokens = (2, 2, 8, 8) if tiny else (32, 8, 128, 256)
    threads = {"OMP_NUM_THREADS": "2"}
    entries = [
        Entry(OURS, "reasoning_rlinf.py", env=ours("").env),
        Entry(TRL, "reasoning_trl.py", python=settings.trl, env=threads),
    ]
    with tempfile.TemporaryDirectory() as place, live(entries, Path(place)) as running:
        folder = str(Path(place) / "model")
        made, other = running
        made.ask("make_random", LONG, folder=folder, shape=shape, prompts=4 * groups, length=prompt)
        made.ask("prepare", folder=folder, recipe=str(RECIPE), extension="benchmarks.parity_reward")
        shaped = [f"data.train_data_paths=[{folder}/prompts.jsonl]"]
        shaped += [f"data.rollout_batch_size={groups}", f"algorithm.group_size={samples}"]
        shaped += [f"algorithm.sampling_params.max_new_tokens={tokens}"]
        if tiny:
            shaped += ["actor.model.model_type=qwen3", "actor.model.precision=fp32"]
            shaped += ["weight_syncer.bucket.bucket_dtype=null"]
        # Generation of TRL takes long; ours can afford a few steps more.
        asked = {"updates": 1 if tiny else 4, "overrides": shaped}
        yield _row(made, shape, groups * samples, asked)
        precision = "fp32" if tiny else "bf16"
        prepared = {"folder": folder, "threads": 2, "precision": precision, "reward": "parity"}
        try:
            yield {"contestant": TRL, "note": other.ask("prepare", LONG, **prepared)}
            asked = {"updates": 1, "groups": groups, "samples": samples, "tokens": tokens}
            asked |= {"micro_batch": samples if tiny else 32, "lr": 1e-6}
            yield _row(other, shape, groups * samples, asked)
        except ContestantFailed as failure:
            yield {"contestant": TRL, "note": f"failed: {str(failure)[-600:]}"}


def _row(contestant: Contestant, shape: str, samples: int, asked: dict) -> Row:
    found = contestant.ask("train", LONG, **asked)
    parts = ("generate", "training", "sync_weights")
    return {
        "contestant": contestant.name,
        "model": shape,
        "seconds per step": round(found["seconds"], 3),
        "samples/s": round(samples / found["seconds"], 1),
        "mean length": round(found["length"], 1),
        "note": ", ".join(f"{name} {found[name]:.3f} s" for name in parts if name in found),
    }
