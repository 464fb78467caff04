"""Speed of GRPO on a small language model, beside TRL's GRPOTrainer.

Usage, from the root of the repository, on an otherwise idle machine:

    python3.11 -m venv trl-env
    trl-env/bin/pip install torch==2.13.0 'trl==1.16.*' 'transformers==5.22.*'
    python -m benchmarks.reasoning --trl trl-env/bin/python

Everybody trains the model of the recipe `arithmetic_grpo`, half a million parameters, as its
supervised steps leave it: the reinforcement alone is measured. 32 prompts with 8 responses of up to
32 tokens per step, temperature 1, no reference policy, one update, float32. Ours is `rlinf train
arithmetic_grpo`, read from what the run writes, in which actor, rollout and reward are processes of
their own. TRL has as many torch threads as there are cores, which is what its users get; for so
small a model one thread may be faster, so that is shown as well. The first step of everybody is not
counted, nor is the start.

Contestants take turns in every round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.communication import Turns
from benchmarks.harness import Aim, Board, Contestant, Entry, chosen, live, ours, run

OURS = "ours"
TRL = "TRL"
ONE_THREAD = f"{TRL}, 1 thread"
RECIPE = "arithmetic_grpo"
GROUPS, SAMPLES, TOKENS = 32, 8, 32
RATE = 3e-4
"""Learning rate of the recipe at its highest."""
PROMPTS = 2048
"""That TRL draws from; a run of the recipe takes the first ones of these."""
LONG = 900.0
"""Seconds that no sample takes."""


def entries(trl: str | None = None) -> list[Entry]:
    """Return the contestants.

    Args:
        trl: interpreter that has TRL; without one it is left out.
    """
    known = [ours("reasoning_rlinf.py")]
    if trl is not None:
        for name, threads in ((TRL, os.cpu_count() or 1), (ONE_THREAD, 1)):
            env = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
            options = {"prepare": {"threads": threads}}
            known.append(Entry(name, "reasoning_trl.py", python=trl, env=env, options=options))
    return known


def check_trl(python: str) -> None:
    """Look for TRL.

    Raises:
        ValueError: the interpreter does not have it.
    """
    if subprocess.run([python, "-c", "import trl"], capture_output=True).returncode:
        raise ValueError(
            f"--trl {python}: this interpreter has no trl; make an environment for it:\n"
            "  python3.11 -m venv trl-env\n"
            "  trl-env/bin/pip install torch==2.13.0 'trl==1.16.*' 'transformers==5.22.*'"
        )


def measure(board: Board, turns: Turns, updates: int, folder: Path) -> list[str]:
    """Measure samples per second; return notes for the reader."""
    model = str(folder / "model")
    faster = [Aim(2.0, name, at_least=True) for name in (TRL, ONE_THREAD)]
    speed = board.row("GRPO, all of the loop", "samples/s", 0, faster)
    seconds = board.row("one step", "s", 3)
    length = board.row("mean length of responses", "tokens", 1)
    score = board.row("mean score", "of 1", 3)
    paths: dict[str, str] = {}
    phases: list[dict[str, float]] = []

    def make(contestant: Contestant) -> None:
        contestant.ask("make", timeout=LONG, folder=model, recipe=RECIPE, prompts=PROMPTS)

    def prepare(contestant: Contestant) -> None:
        further = {"precision": "fp32", "reward": "arithmetic"}
        if contestant.name == OURS:
            further = {"recipe": RECIPE}
        paths[contestant.name] = contestant.ask("prepare", timeout=LONG, folder=model, **further)

    def sample(contestant: Contestant) -> None:
        if contestant.name == OURS:
            found = contestant.ask("train", timeout=LONG, updates=updates, overrides=[])
            phases.append(found)
        else:
            shape = {"groups": GROUPS, "samples": SAMPLES, "tokens": TOKENS}
            shape |= {"micro_batch": GROUPS * SAMPLES}
            found = contestant.ask("train", timeout=LONG, updates=updates, lr=RATE, **shape)
        speed.add(contestant.name, GROUPS * SAMPLES / found["seconds"])
        seconds.add(contestant.name, found["seconds"])
        length.add(contestant.name, found["length"])
        score.add(contestant.name, found["score"])

    turns.once(make, but=(TRL, ONE_THREAD))
    turns.once(prepare)
    turns.sample(sample)
    notes = ["; ".join(f"{name}: {path}" for name, path in paths.items()) + "."]
    if phases:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {min(found[name] for found in phases):.3f} s"
            for name in ("generate", "training", "sync_weights")
        )
        notes.append(f"A step of ours, the best round: {parts}.")
    return notes


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=5, metavar="N", help="samples of each (5)")
    options.add_argument("--updates", type=int, default=10, metavar="N", help="per sample (10)")
    options.add_argument("--quick", action="store_true", help="1 round of 2: does it work?")
    options.add_argument("--trl", metavar="PYTHON", help="interpreter that has TRL")
    options.add_argument("--only", nargs="+", metavar="NAME", help="contestants to run")
    options.add_argument("--json", type=Path, metavar="FILE", help="where to write all samples")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser()
    args = options.parse_args(arguments)
    try:
        if args.trl is not None:
            check_trl(args.trl)
        known = chosen(entries(args.trl), args.only)
    except ValueError as error:
        options.error(str(error))
    rounds, updates = (1, 2) if args.quick else (args.rounds, args.updates)
    board = Board([entry.name for entry in known])
    notes = [f"{rounds} rounds of {updates} steps with {GROUPS} x {SAMPLES} samples."]

    def all_of_it(folder: Path) -> None:
        with live(known, folder) as running:
            notes.extend(measure(board, Turns(board, running, rounds), updates, folder))

    ratios = [(OURS, TRL), (OURS, ONE_THREAD)]
    return run(board, all_of_it, ratios, notes, args.json)


if __name__ == "__main__":
    sys.exit(main())
