"""Speed of generation, beside `transformers.generate`, its continuous batching, and vLLM.

Usage, from the root of the repository, on an otherwise idle machine:

    python -m benchmarks.generation                          # a small model on a CPU
    python -m benchmarks.generation --shape 0.5B             # on a GPU
    python -m benchmarks.generation --vllm env/bin/python    # an interpreter that has vLLM
    python -m benchmarks.generation --paged                  # ours with a paged cache, too

Everybody loads the same random model and draws at temperature 1 without cuts, `--groups` prompts
with `--samples` responses each. In one measure every response has all its tokens. In the other one
responses may end before: one of the 32 tokens that the small model knows is the end. Ours, vLLM and
continuous batching return log-probabilities; `generate` does not. On a CPU everybody has
`--threads` torch threads. A first round is not counted.

On a GPU a line tells the limit of memory bandwidth: tokens per second if each step of the whole
batch took as long as reading all weights and all keys and values once.

Contestants take turns in every round.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.communication import Turns
from benchmarks.harness import Aim, Board, Contestant, Entry, chosen, live, ours, run

OURS = "ours"
PAGED = "ours, paged"
GENERATE, BATCHED, VLLM = "generate", "continuous batching", "vllm"
SMALL = "small"
LONG = 1800.0
"""Seconds that no sample takes."""


def entries(vllm: str | None = None, threads: int = 1, paged: bool = False) -> list[Entry]:
    """Return the contestants.

    Args:
        vllm: interpreter that has vLLM; without one it is left out.
        threads: of torch.
        paged: whether ours takes part with a paged cache, too.
    """
    env = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    batched = {"prepare": {"continuous": True}}
    known = [
        Entry(OURS, "generation_rlinf.py", env={**env, **ours("").env}),
        Entry(GENERATE, "generation_transformers.py", env=env),
        Entry(BATCHED, "generation_transformers.py", env=env, options=batched),
    ]
    if paged:
        of_ours = {**env, **ours("").env}
        options = {"prepare": {"paged": True}}
        known.append(Entry(PAGED, "generation_rlinf.py", env=of_ours, options=options))
    if vllm is not None:
        known.append(Entry(VLLM, "generation_vllm.py", python=vllm, env=env))
    return known


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Random prompts whose lengths differ by up to a quarter."""
    generator = random.Random(seed)
    shortest = max(1, length - length // 4)
    return [
        [generator.randrange(3, 32) for _ in range(generator.randint(shortest, length))]
        for _ in range(count)
    ]


def measure(board: Board, turns: Turns, settings: argparse.Namespace, folder: Path) -> list[str]:
    """Measure tokens per second; return notes for the reader."""
    model = str(folder / "model")
    notes: list[str] = []
    sizes: dict[str, float] = {}
    paths: dict[str, str] = {}
    rows = settings.groups * settings.samples
    length = settings.prompt + settings.tokens

    def make(contestant: Contestant) -> None:
        sizes.update(contestant.ask("make", timeout=LONG, shape=settings.shape, folder=model))

    def prepare(contestant: Contestant) -> None:
        paths[contestant.name] = contestant.ask(
            "prepare",
            timeout=LONG,
            folder=model,
            threads=settings.threads,
            precision="fp32" if settings.shape == SMALL else "bf16",
            length=length,
            rows=rows,
        )

    turns.once(make, but=(PAGED, BATCHED, VLLM))
    turns.once(prepare)
    times = 5.0 if settings.shape == SMALL else 15.0
    asked = prompts(settings.groups, settings.prompt)
    for label, ends in (("every response is as long", False), ("responses end by chance", True)):
        if ends and settings.shape != SMALL:
            continue
        row = board.row(
            f"{settings.groups} x {settings.samples}, {settings.tokens} tokens, {label}",
            "tokens/s",
            0,
            [Aim(times, GENERATE, at_least=True)],
        )
        round_ = [0]

        def sample(contestant: Contestant, row=row, ends=ends, count=round_) -> None:
            found = contestant.ask(
                "generate",
                timeout=LONG,
                prompts=asked,
                n=settings.samples,
                tokens=settings.tokens,
                ends=ends,
                seed=count[0],
            )
            count[0] += 1
            row.add(contestant.name, found["tokens"] / found["seconds"])

        turns.once(lambda contestant, sample=sample: sample(contestant))
        row.samples.clear()
        turns.sample(sample)
    notes.append("; ".join(f"{name}: {path}" for name, path in paths.items()) + ".")
    if settings.shape != SMALL and sizes:
        context = settings.prompt + settings.tokens / 2
        step = sizes["weight_bytes"] + rows * context * sizes["token_bytes"]
        limit = rows / (step / settings.bandwidth / 1e12)
        median = row.median(OURS)
        share = "-" if median is None else f"{median / limit:.1%}"
        notes.append(
            f"Limit of {settings.bandwidth:g} TB/s at an average context of {context:.0f}: "
            f"{limit:,.0f} tokens/s; ours is at {share} (aim: 25 %)."
        )
    return notes


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", default=SMALL, choices=("small", "0.5B", "1.5B"))
    options.add_argument("--rounds", type=int, default=7, metavar="N", help="samples of each (7)")
    options.add_argument("--groups", type=int, default=32, metavar="N", help="prompts (32)")
    options.add_argument("--samples", type=int, default=8, metavar="N", help="responses each (8)")
    options.add_argument("--prompt", type=int, metavar="N", help="tokens of a prompt")
    options.add_argument("--tokens", type=int, metavar="N", help="tokens of a response")
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    options.add_argument("--bandwidth", type=float, default=4.8, metavar="TB/S", help="of the GPU")
    options.add_argument("--vllm", metavar="PYTHON", help="interpreter that has vLLM")
    options.add_argument("--paged", action="store_true", help="ours with a paged cache, too (CPU)")
    options.add_argument("--only", nargs="+", metavar="NAME", help="contestants to run")
    options.add_argument("--json", type=Path, metavar="FILE", help="where to write all samples")
    options.add_argument("--quick", action="store_true", help="one short round")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    settings = parser().parse_args(arguments)
    small = settings.shape == SMALL
    settings.prompt = settings.prompt or (12 if small else 256)
    settings.tokens = settings.tokens or (48 if small else 512)
    if settings.quick:
        settings.rounds, settings.groups, settings.samples, settings.tokens = 1, 4, 2, 8
    known = chosen(entries(settings.vllm, settings.threads, settings.paged), settings.only)
    board = Board([entry.name for entry in known])
    notes = [f"{settings.rounds} rounds, {settings.threads} threads, model {settings.shape}."]

    def all_of_it(folder: Path) -> None:
        with live(known, folder) as running:
            turns = Turns(board, running, settings.rounds)
            notes.extend(measure(board, turns, settings, folder))

    ratios = [(OURS, GENERATE), (OURS, BATCHED), (OURS, VLLM), (OURS, PAGED)]
    return run(board, all_of_it, ratios, notes, settings.json)


if __name__ == "__main__":
    sys.exit(main())
