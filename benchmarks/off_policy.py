r"""SAC beside that of Stable-Baselines3, and RLPD beside SAC.

Usage, from the root of the repository, on an otherwise idle machine:

    pip install stable-baselines3        # not a dependency of this package
    python -m benchmarks.off_policy --json cells.jsonl
    python -m benchmarks.off_policy --part sac --task HalfCheetah-v5 --seed 1 --contestant ours \
        --cores 0,1 --json cells.jsonl   # one cell alone
    python -m benchmarks.off_policy --read cells.jsonl    # the tables of cells that were run before
    python -m benchmarks.off_policy --read cells.jsonl --write    # and curves for `rlinf verify`

Cells are explained in `benchmarks.cells`.

`sac`: both train SAC with 8 envs, a gradient step per env step, two layers of 128 units, batches of
256 and 40,000 env steps. Evaluations are of episodes without noise, and are not in the times.
Stable-Baselines3 has as many torch threads as the cell has cores, which is what its users get; for
so small a network one thread may be faster, so that is shown as well.

`rlpd`: env steps until 90 % of 100 held-out starts are solved, by SAC and by RLPD with 20
demonstrations and dense reward, and by RLPD with success as the only reward. Experts of the first
two tasks have a high dense return; that of the button earns less than hovering before it does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import cells
from benchmarks.cells import Cell, Line, grouped, markdown
from benchmarks.harness import Entry, ours
from benchmarks.learning import write_curves
from rlinf.cli.curves import Curve

CHEETAH, BUTTON = "HalfCheetah-v5", "button-press-v3"
REACH, FAUCET = "reach-v3", "faucet-open-v3"
OURS, SB3, ONE_THREAD = "ours", "SB3", "SB3, 1 thread"
SAC, RLPD, SPARSE = "SAC", "RLPD", "RLPD, success only"
PARTS = {
    "sac": {"tasks": (CHEETAH, BUTTON), "contestants": (OURS, SB3, ONE_THREAD)},
    "rlpd": {"tasks": (FAUCET, REACH, BUTTON), "contestants": (SAC, RLPD, SPARSE)},
}
RECIPES = {
    ("sac", CHEETAH, OURS): "gymnasium_sac_mlp",
    ("rlpd", REACH, SAC): "metaworld_sac_mlp",
    ("rlpd", BUTTON, SPARSE): "metaworld_rlpd_mlp",
}
"""Cells that train a recipe, if on another task."""
ENVS, STEPS, BATCH, HIDDEN, STARTS, HORIZON = 8, 40_000, 256, [128, 128], 800, 100
FEW_STEPS, SAC_STEPS = 8_000, 24_000
"""Of RLPD, and of SAC beside it."""
GOAL, STARTING_POINTS = 0.9, 100


# -- running ---------------------------------------------------------------------------------------


def entry_of(cell: Cell, sb3: str, cores: int) -> Entry:
    """Return who trains in a cell."""
    if cell.part == "sac" and cell.contestant != OURS:
        threads = str(1 if cell.contestant == ONE_THREAD else cores)
        env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        return Entry(cell.contestant, "off_policy_sb3.py", python=sb3, env=env)
    return Entry(cell.contestant, "training_rlinf.py", env=ours("").env)


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
    steps = steps or (FEW_STEPS if few else SAC_STEPS)
    overrides = _overrides(cell, steps, 512 if few else 2048, STARTING_POINTS)
    if not few:
        return {"recipe": "metaworld_sac_mlp", "overrides": overrides}
    reward = "success" if cell.contestant == SPARSE else "dense"
    overrides.append(f"env.train.reward={reward}")
    collect = {"recipe": "metaworld_rlpd_mlp", "overrides": overrides}
    key = "algorithm.demo_buffer.load_path={}"
    return {"recipe": "metaworld_rlpd_mlp", "overrides": overrides, "collect": collect, "data": key}


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


# -- tables ----------------------------------------------------------------------------------------


def sac_table(lines: Sequence[Line]) -> str:
    """Return returns, times and rates of SAC in Markdown: means over seeds, and their range."""
    rows = [["task", "contestant", "seeds", "return", "training (s)", "updates/s", "success"]]
    rows.append(["---", "---", *["---:"] * 5])
    for task, who, own in grouped(PARTS, lines, "sac"):
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
    return markdown(rows)


def rlpd_table(lines: Sequence[Line]) -> str:
    """Return env steps to the goal in Markdown, seed by seed."""
    rows = [["task", "contestant", f"env steps to {GOAL:.0%}, by seed", "median", "last success"]]
    rows.append(["---", "---", "---:", "---:", "---:"])
    for task, who, own in grouped(PARTS, lines, "rlpd"):
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
    return markdown(rows)


def steps_to_goal(line: Line) -> int | None:
    """Return the env steps before the first evaluation that reached the goal."""
    found = zip(line["env_steps"], line["success"], strict=True)
    return next((steps for steps, share in found if share >= GOAL), None)


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.mean(values):,.0f}"
    return middle if len(values) < 2 else f"{middle} [{min(values):,.0f}–{max(values):,.0f}]"


# -- curves ----------------------------------------------------------------------------------------


def written_curves(lines: Sequence[Line]) -> list[str]:
    """Write the curve file of each recipe that at least two of the cells trained.

    Returns:
        What `benchmarks.learning.write_curves` says of each.
    """
    said = []
    for (part, task, who), recipe in RECIPES.items():
        found = {(at, name): own for at, name, own in grouped(PARTS, lines, part)}
        own = found.get((task, who), [])
        if len(own) > 1:
            asked = arguments_of(Cell(part, task, who, 0))["overrides"]
            about = {
                "recipe": recipe,
                "overrides": [word for word in asked if not word.startswith("runner.seed=")],
                "command": f"python -m benchmarks.off_policy --part {part} --task {task} --write",
                "date": own[0]["date"],
                "machine": own[0]["machine"],
            }
            said.append(write_curves(about, {line["seed"]: _curve(line) for line in own}))
    return said


def _curve(line: Line) -> Curve:
    values = {"success_once": line["success"], "return": line["returns"]}
    return Curve(line["env_steps"], line["episodes"], values)


# -- the command -----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = cells.parser(__doc__, PARTS)
    options.add_argument("--steps", type=int, metavar="N", help="env steps, for a short trial")
    options.add_argument(
        "--sb3", metavar="PYTHON", default=sys.executable, help="interpreter that has it"
    )
    options.add_argument(
        "--write", action="store_true", help="write curve files of the recipes that were trained"
    )
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parser()
    args = options.parse_args(argv)
    if args.write:
        if args.read is None:
            options.error("--write needs the cells of --read")
        print("\n".join(written_curves(cells.read(args.read))))
    return cells.main(
        options,
        argv,
        PARTS,
        lambda cell, args, cores: entry_of(cell, args.sb3, cores),
        lambda cell, args: arguments_of(cell, args.steps),
        lambda lines: sac_table(lines) + "\n\n" + rlpd_table(lines),
    )


if __name__ == "__main__":
    sys.exit(main())
