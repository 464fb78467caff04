"""Whole GRPO steps of a random model, with our engine and another; they must agree in scores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu_parts.grpo import LONG, OURS, Steps
from benchmarks.gpu_parts.settings import Row, Settings
from benchmarks.harness import Contestant, ContestantFailed, Entry, live, ours


def measure(settings: Settings) -> Iterator[Row]:
    """A row per engine."""
    yield from compare(settings, "vllm")


def compare(settings: Settings, engine: str) -> Iterator[Row]:
    """A row for an engine, one for the engine that sleeps in between, and one for ours."""
    other = [f"rollout.rollout_backend={engine}"]
    cases = {
        engine: other,
        f"{engine}, asleep while the actor trains": [*other, "rollout.enable_offload=true"],
        "hf": ["rollout.rollout_backend=hf"],
    }
    shared = ["rollout.gpu_memory_utilization=0.1"] if settings.tiny else []
    yield from train_each(settings, cases, shared)


def train_each(
    settings: Settings, cases: dict[str, list[str]], shared: Sequence[str] = ()
) -> Iterator[Row]:
    """Train the same model by overrides of each case; one that fails does not stop the rest.

    Args:
        settings: of the part.
        cases: overrides, by name.
        shared: overrides of all cases.

    Yields:
        A row per case, with a note if it failed.
    """
    steps = Steps.of(settings)
    entries = [Entry(OURS, "reasoning_rlinf.py", env=ours("").env)]
    with tempfile.TemporaryDirectory() as place, live(entries, Path(place)) as (made,):
        shaped = [*steps.prepare(made, Path(place) / "model"), *shared]
        for name, further in cases.items():
            updates = 1 if settings.tiny else 4
            yield train_one(made, steps, name, updates, [*shaped, *further])


def train_one(
    contestant: Contestant, steps: Steps, name: str, updates: int, overrides: list[str]
) -> Row:
    """Train once, and return a row; it has a note if that failed."""
    try:
        found = contestant.ask("train", LONG, updates=updates, overrides=overrides)
    except ContestantFailed as failure:
        return {"engine": name, "note": f"failed: {str(failure)[-1500:]}"}
    seconds, taken = found.pop("seconds"), found.pop("device_bytes")
    return {
        "engine": name,
        "model": steps.shape,
        "seconds per step": round(seconds, 3),
        "samples/s": round(steps.responses / seconds, 1),
        "tokens/s": round(steps.responses * found["length"] / found["generate"]),
        "GPU GiB": round(taken / 2**30, 2),
        **{key: round(value, 6) for key, value in found.items()},
    }
