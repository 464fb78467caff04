"""Whole GRPO steps of a random model, beside TRL's GRPOTrainer on the same model and prompts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_parts.settings import TINY, Row, Settings
from benchmarks.harness import Contestant, ContestantFailed, Entry, live, ours

RECIPE = Path(__file__).with_name("grpo.yaml")
OURS, TRL = "ours", "TRL"
LONG = 400.0
"""Seconds that no contestant takes."""


@dataclass(frozen=True)
class Steps:
    """What a step consists of.

    Attributes:
        shape: of the model.
        groups: prompts.
        samples: responses per prompt.
        prompt: tokens of a prompt.
        tokens: most tokens of a response.
    """

    shape: str
    groups: int = 32
    samples: int = 8
    prompt: int = 128
    tokens: int = 256

    @classmethod
    def of(cls, settings: Settings) -> Steps:
        """Return steps of the first size, or the smallest ones there are."""
        return cls(TINY, 2, 2, 8, 8) if settings.tiny else cls(settings.sizes[0])

    @property
    def responses(self) -> int:
        """Of a step."""
        return self.groups * self.samples

    def prepare(self, contestant: Contestant, folder: Path) -> list[str]:
        """Let ours make model and prompts in a folder; return overrides of the recipe."""
        contestant.ask(
            "make_random",
            LONG,
            folder=str(folder),
            shape=self.shape,
            prompts=4 * self.groups,
            length=self.prompt,
        )
        contestant.ask(
            "prepare", folder=str(folder), recipe=str(RECIPE), extension="benchmarks.parity_reward"
        )
        overrides = [
            f"data.train_data_paths=[{folder}/prompts.jsonl]",
            f"data.rollout_batch_size={self.groups}",
            f"algorithm.group_size={self.samples}",
            f"algorithm.sampling_params.max_new_tokens={self.tokens}",
        ]
        if self.shape == TINY:
            overrides += [
                "actor.model.model_type=qwen3",
                "actor.model.precision=fp32",
                "weight_syncer.bucket.bucket_dtype=null",
            ]
        return overrides


def measure(settings: Settings) -> Iterator[Row]:
    """A row per contestant."""
    tiny, steps = settings.tiny, Steps.of(settings)
    threads = {"OMP_NUM_THREADS": "2"}
    entries = [
        Entry(OURS, "reasoning_rlinf.py", env=ours("").env),
        Entry(TRL, "reasoning_trl.py", python=settings.trl, env=threads),
    ]
    with tempfile.TemporaryDirectory() as place, live(entries, Path(place)) as running:
        folder = Path(place) / "model"
        made, other = running
        shaped = steps.prepare(made, folder)
        # Generation of TRL takes long; ours can afford a few steps more.
        asked = {"updates": 1 if tiny else 4, "overrides": shaped}
        yield _row(made, steps, asked)
        precision = "fp32" if tiny else "bf16"
        prepared = {"folder": str(folder), "threads": 2, "precision": precision, "reward": "parity"}
        try:
            yield {"contestant": TRL, "note": other.ask("prepare", LONG, **prepared)}
            asked = {"updates": 1, "groups": steps.groups, "samples": steps.samples}
            asked |= {"tokens": steps.tokens, "lr": 1e-6}
            asked |= {"micro_batch": steps.samples if tiny else 32}
            yield _row(other, steps, asked)
        except ContestantFailed as failure:
            yield {"contestant": TRL, "note": f"failed: {str(failure)[-600:]}"}


def _row(contestant: Contestant, steps: Steps, asked: dict) -> Row:
    found = contestant.ask("train", LONG, **asked)
    parts = ("generate", "training", "sync_weights")
    return {
        "contestant": contestant.name,
        "model": steps.shape,
        "seconds per step": round(found["seconds"], 3),
        "samples/s": round(steps.responses / found["seconds"], 1),
        "mean length": round(found["length"], 1),
        "note": ", ".join(f"{name} {found[name]:.3f} s" for name in parts if name in found),
    }
