r"""SAC beside that of Stable-Baselines3, and RLPD beside SAC.

Usage, from the root of the repository, on an otherwise idle machine:

    pip install stable-baselines3        # not a dependency of this package
    python -m benchmarks.off_policy --json cells.jsonl
    python -m benchmarks.off_policy --part sac --task HalfCheetah-v5 --seed 1 --contestant ours \
        --cores 0,1 --json cells.jsonl   # one cell alone
    python -m benchmarks.off_policy --read cells.jsonl    # the tables of cells that were run before

A cell is one training: a task, a contestant and a seed. Each appends one line of JSON to the file
that --json names; cells may run beside each other if --cores gives each its own.

`sac`: both train SAC with 8 envs, a gradient step per env step, two layers of 128 units, batches of
256 and 40,000 env steps. Evaluations are of episodes without noise, and are not in the times.
Stable-Baselines3 has as many torch threads as the cell has cores, which is what its users get; for
so small a network one thread may be faster, so that is shown as well.

`rlpd`: env steps until 90 % of 100 held-out starts are solved, by SAC and by RLPD with 20
demonstrations and dense reward, and by RLPD with success as the only reward.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Contestant, ContestantFailed, Entry, describe_machine, live, ours

CHEETAH, BUTTON = "HalfCheetah-v5", "button-press-v3"
OURS, SB3, ONE_THREAD = "ours", "SB3", "SB3, 1 thread"
SAC, RLPD, SPARSE = "SAC", "RLPD", "RLPD, success only"
PARTS = {
    "sac": {"tasks": (CHEETAH, BUTTON), "contestants": (OURS, SB3, ONE_THREAD)},
    "rlpd": {"tasks": (BUTTON,), "contestants": (SAC, RLPD, SPARSE)},
}
SEEDS = (1, 2, 3)
ENVS, STEPS, BATCH, HIDDEN, STARTS, HORIZON = 8, 40_000, 256, [128, 128], 800, 100
FEW_STEPS = 8_000
"""Of RLPD."""
GOAL, STARTING_POINTS = 0.9, 100
LONG = 7200.0
"""Seconds that no cell takes."""


@dataclass(frozen=True)
class Cell:
    """One training."""

    part: str
    task: str
    contestant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.part}: {self.contestant}, {self.task}, seed {self.seed}"


def cells(
    part: str | None = None,
    task: str | None = None,
    contestant: str | None = None,
    seed: int | None = None,
) -> Iterator[Cell]:
    """Yield the cells that options leave; seeds first, so that contestants take turns.

    Raises:
        ValueError: there is no such cell.
    """
    found = [
        Cell(name, each, who, number)
        for name, known in PARTS.items()
        for each in known["tasks"]
        for number in (SEEDS if seed is None else (seed,))
        for who in known["contestants"]
        if part in (None, name) and task in (None, each) and contestant in (None, who)
    ]
    if not found:
        raise ValueError(
            f"no cell has part {part}, task {task} and contestant {contestant}; there are "
            + "; ".join(f"{name}: {known}" for name, known in PARTS.items())
        )
    yield from found


# -- running ---------------------------------------------------------------------------------------


def entry_of(cell: Cell, sb3: str, cores: int) -> Entry:
    """Return who trains in a cell."""
    if cell.part == "sac" and cell.contestant != OURS:
        threads = str(1 if cell.contestant == ONE_THREAD else cores)
        env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        return Entry(cell.contestant, "off_policy_sb3.py", python=sb3, env=env)
    return Entry(cell.contestant, "off_policy_rlinf.py", env=ours("").env)


def arguments_of(cell: Cell, steps: int | None = None) -> dict[str, Any]:
    """Return what its contestant is asked.

    Args:
        cell: the cell.
        steps: env steps; None is as many as the part says.
    """
    gymnasium = cell.task == CHEETAH
    if cell.part == "sac":
        steps, episodes = steps or STEPS, 10 if gymnasium else 40
        every = max(steps // 5, ENVS * ENVS)
        if cell.contestant == OURS:
            recipe = "gymnasium_sac_mlp" if gymnasium else "metaworld_sac_mlp"
            return {"recipe": recipe, "overrides": _overrides(cell, steps, every, episodes)}
        shape = {"envs": ENVS, "batch": BATCH, "hidden": HIDDEN, "starts": STARTS}
        schedule = {"steps": steps, "every": every, "episodes": episodes}
        horizon = None if gymnasium else HORIZON
        return {"task": cell.task, "seed": cell.seed, "horizon": horizon, **shape, **schedule}
    few = cell.contestant != SAC
    steps = steps or (FEW_STEPS if few else STEPS)
    overrides = _overrides(cell, steps, 512 if few else 1024, STARTING_POINTS)
    if not few:
        return {"recipe": "metaworld_sac_mlp", "overrides": overrides}
    reward = "success" if cell.contestant == SPARSE else "dense"
    overrides.append(f"env.train.reward={reward}")
    return {"recipe": "metaworld_rlpd_mlp", "overrides": overrides, "collects": True}


def _overrides(cell: Cell, steps: int, every: int, episodes: int) -> list[str]:
    rollout = ENVS * ENVS
    name = "id" if cell.task == CHEETAH else "task"
    return [
        f"env.train.{name}={cell.task}",
        f"runner.seed={cell.seed}",
        f"runner.max_epochs={-(-steps // rollout)}",
        f"runner.val_check_interval={max(1, every // rollout)}",
        f"runner.eval_episodes={episodes}",
        "runner.logger.logger_backends=[jsonl]",
        "runner.log_interval=1",
        "runner.progress=plain",
        *(() if cell.task == CHEETAH else ("env.eval.video_cfg.save_video=false",)),
    ]


def run_cell(cell: Cell, contestant: Contestant, cores: int, steps: int | None) -> dict[str, Any]:
    """Train, and return the line of a cell."""
    found = contestant.ask("train", timeout=LONG, **arguments_of(cell, steps))
    return {**vars(cell), "cores": cores, "machine": describe_machine(), **found}


# -- tables ----------------------------------------------------------------------------------------


def sac_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return returns, times and rates of SAC in Markdown: means over seeds, and their range."""
    rows = [["task", "contestant", "seeds", "return", "training (s)", "updates/s", "success"]]
    rows.append(["---", "---", *["---:"] * 5])
    for task, who, own in _grouped(lines, "sac"):
        rates = [line["updates"] / line["update_seconds"] for line in own]
        rows.append(
            [
                task,
                who,
                str(len(own)),
                _spread([line["returns"][-1] for line in own]),
                _spread([line["training_seconds"] for line in own]),
                _spread(rates),
                f"{statistics.mean(line['success'][-1] for line in own):.0%}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def rlpd_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return env steps to the goal in Markdown, seed by seed."""
    rows = [["task", "contestant", f"env steps to {GOAL:.0%}, by seed", "median", "last success"]]
    rows.append(["---", "---", "---:", "---:", "---:"])
    for task, who, own in _grouped(lines, "rlpd"):
        steps = [steps_to_goal(line) for line in own]
        shown = ["not reached" if n is None else f"{n:,}" for n in steps]
        reached = [float("inf") if n is None else n for n in steps]
        middle = statistics.median(reached)
        rows.append(
            [
                task,
                who,
                ", ".join(shown),
                "not reached" if middle == float("inf") else f"{middle:,.0f}",
                f"{statistics.mean(line['success'][-1] for line in own):.0%}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def steps_to_goal(line: dict[str, Any]) -> int | None:
    """Return the env steps before the first evaluation that reached the goal."""
    found = zip(line["env_steps"], line["success"], strict=True)
    return next((steps for steps, share in found if share >= GOAL), None)


def _grouped(
    lines: Iterable[dict[str, Any]], part: str
) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    known = PARTS[part]
    lines = [line for line in lines if line["part"] == part]
    for task in known["tasks"]:
        for who in known["contestants"]:
            own = [x for x in lines if (x["task"], x["contestant"]) == (task, who)]
            if own:
                yield task, who, sorted(own, key=lambda line: line["seed"])


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.mean(values):,.0f}"
    return middle if len(values) < 2 else f"{middle} [{min(values):,.0f}–{max(values):,.0f}]"


# -- the command -----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--part", choices=PARTS, help="only this part")
    options.add_argument("--task", help="only this task")
    options.add_argument("--contestant", help="only this contestant")
    options.add_argument("--seed", type=int, help="only this seed")
    options.add_argument("--steps", type=int, metavar="N", help="env steps, for a short trial")
    options.add_argument("--cores", metavar="LIST", help="cores to run on, such as 0,1")
    options.add_argument(
        "--sb3", metavar="PYTHON", default=sys.executable, help="interpreter that has it"
    )
    options.add_argument(
        "--json", type=Path, metavar="FILE", help="where to append a line per cell"
    )
    options.add_argument("--read", type=Path, metavar="FILE", help="show these cells, run none")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parser()
    args = options.parse_args(argv)
    if args.read is not None:
        lines = [json.loads(line) for line in args.read.read_text().splitlines()]
        print(sac_table(lines) + "\n\n" + rlpd_table(lines))
        return 0
    try:
        chosen = list(cells(args.part, args.task, args.contestant, args.seed))
    except ValueError as error:
        options.error(str(error))
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    cores = len(os.sched_getaffinity(0))
    # A training that is under way is ended on this way out, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    lines, failures = [], 0
    for cell in chosen:
        print(cell, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            with live([entry_of(cell, args.sb3, cores)], Path(folder)) as (contestant,):
                try:
                    line = run_cell(cell, contestant, cores, args.steps)
                except ContestantFailed as failure:
                    failures += 1
                    print(f"FAILED {cell}: {failure}", file=sys.stderr, flush=True)
                    continue
        lines.append(line)
        if args.json is not None:
            with args.json.open("a") as out:
                out.write(json.dumps(line) + "\n")
    print(sac_table(lines) + "\n\n" + rlpd_table(lines))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
