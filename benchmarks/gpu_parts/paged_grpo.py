"""Whole GRPO steps with our engine, its cache paged and in contiguous rows: the same first step.

`runner.seq_length` is 4,096, as for a model that may think for long, while responses have 256
tokens: contiguous rows take the memory of full sequences, blocks that of the contexts. `tokens/s`
counts new tokens by the time of generation. Before the first update both engines have the same
weights, prompts and seeds, so that scores, lengths and the difference between log-probabilities of
engine and actor must be the same; the part fails if they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu_parts.settings import Row, Settings
from benchmarks.gpu_parts.vllm_grpo import train_each

CASES = {"rows": "false", "paged": "true", "auto": "auto"}
LENGTH = 4096
EXACT, ROUNDING = 1e-6, 1e-3
"""How far scores and lengths may be apart, and log-probabilities: actors add in any order."""


def measure(settings: Settings) -> Iterator[Row]:
    """A row per cache."""
    cases = {name: [f"rollout.hf.paged_cache={value}"] for name, value in CASES.items()}
    shared = ["rollout.rollout_backend=hf"]
    if not settings.tiny:
        shared += [f"runner.seq_length={LENGTH}"]
    rows = []
    for row in train_each(settings, cases, shared):
        rows.append(row)
        yield row
    problems = differences(rows)
    if problems:
        raise RuntimeError("; ".join(problems))


def differences(rows: Sequence[Row]) -> list[str]:
    """Return in what the first steps of rows differ, in words."""
    problems = [f"{row['engine']} {row['note']}" for row in rows if "note" in row]
    done = [row for row in rows if "note" not in row]
    for row in done[1:]:
        for key, allowed in (
            ("first score", EXACT),
            ("first length", EXACT),
            ("first gap", ROUNDING),
        ):
            mine, other = row[key], done[0][key]
            if abs(mine - other) > allowed:
                names = f"{row['engine']} and {done[0]['engine']}"
                problems.append(f"{key} of {names} differ: {mine:g} and {other:g}")
    return problems
