"""Does a recipe learn, with any seed? Trains it as a user would, once per seed, and tells.

Usage, from the root of the repository, on an otherwise idle machine:

    python -m benchmarks.learning                      # the default job, seeds 0 to 9
    python -m benchmarks.learning --write              # and keep the curves for `rlinf verify`
    python -m benchmarks.learning --recipe metaworld_grpo_mlp --seeds 4 runner.max_epochs=80
    python -m benchmarks.learning --jobs 4             # four seeds at a time: speeds do not count
    python -m benchmarks.learning --recipe gymnasium_ppo_mlp --seeds 3 --eval-episodes 20
    python -m benchmarks.learning --read logs/learning/A logs/learning/B --write   # trains nothing
    python -m benchmarks.learning --recipe metaworld_grpo_flow --from logs/learning/A   # of its SFT
    python -m benchmarks.learning --recipe searchr1_small --seeds 3 --write             # an agent

Each seed is one `rlinf train RECIPE runner.seed=S`, one after the other, with about ten evaluations
of 60 episodes each, always the same. Evaluated policies act without noise. What counts against the
aim are env steps of training, or gradient updates of a run that learns from data alone. Where no
episode counts as a success, returns are told instead.

Of a language model or an agent the curve is pass@1 over training steps, on the validation prompts
of its recipe. Its aim is to answer better than before the training.

A recipe that learns from data has them collected first, by `rlinf collect` with the same seed. One
that starts from another run has it in the folder of an earlier benchmark, each seed its own.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import IDLE_LIMIT, ROOT, busy_share, describe_machine
from benchmarks.learned import Run, conclusion, table
from rlinf.cli import curves
from rlinf.cli.curves import Curve
from rlinf.cli.verify import run_recipe

WITHIN = {"metaworld_ppo_mlp": 60_000}
"""Steps within which every seed should reach the goal; as long as the recipe is, for others."""

EPISODES = 60
EVALUATIONS = 10
"""About how many evaluations a run has."""

_ABOUT = "about.json"


class RunFailed(RuntimeError):
    """A training run ended with an error."""


# -- runs ------------------------------------------------------------------------------------------


def evaluation_overrides(
    recipe: str, overrides: Sequence[str], episodes: int | None = None
) -> list[str]:
    """Return what makes a run tell its curve: about ten evaluations.

    Args:
        recipe: its name.
        overrides: of the recipe.
        episodes: of each evaluation, or prompts; None is `EPISODES`, or what the recipe says of a
            language model.
    """
    from rlinf.config.task_types import LANGUAGE

    runner = _config(recipe, overrides).runner
    steps = min(limit for limit in (runner.max_epochs, runner.max_steps) if limit > 0)
    told = [f"runner.val_check_interval={max(1, round(steps / EVALUATIONS))}"]
    if runner.task_type in LANGUAGE:
        told += [] if episodes is None else [f"data.val_size={episodes}"]
        # What it can do before it is trained is where its curve begins.
        return [*told, "runner.eval_at_start=true", "runner.log_interval=1"]
    told.append(f"runner.eval_episodes={EPISODES if episodes is None else episodes}")
    return [*told, "env.eval.video_cfg.save_video=false", "runner.log_interval=1"]


def train(
    recipe: str, seed: int, overrides: Sequence[str], folder: Path, start: Path | None = None
) -> Run:
    """Collect data if the recipe says how, and train, with one seed.

    The run's own progress goes to the terminal.

    Args:
        recipe: its name.
        seed: its `runner.seed`.
        overrides: of the recipe.
        folder: where the run and its output go.
        start: the run whose weights it starts from; None: what the recipe says.

    Raises:
        RunFailed: the run failed; its output is in `folder`.
    """
    run_folder = folder / f"{recipe}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    output = run_folder.with_suffix(".out")
    arguments = [recipe, *overrides, f"runner.seed={seed}"]
    if start is not None:
        arguments.append(f"runner.ckpt_path={start}")
    key = data_key(_config(recipe, overrides))
    begin = time.monotonic()
    with output.open("w") as out:
        code = 0
        if key is not None:
            arguments.append(key.format(run_folder.with_suffix(".data")))
            command = [sys.executable, "-m", "rlinf.cli", "collect", *arguments]
            code = subprocess.run(command, stdout=out).returncode
        code = code or run_recipe(arguments, run_folder, stdout=out)
    seconds = time.monotonic() - begin
    if code:
        raise RunFailed(f"seed {seed} ended with exit code {code}; see {output} and {run_folder}")
    return read_run(run_folder, seed, seconds)


def data_key(cfg: Any) -> str | None:
    """Return what tells a recipe where its data are, with {} for the folder.

    Returns:
        None if `rlinf collect` has nothing to collect for this recipe.
    """
    if not cfg.get("collect") or not cfg.collect.save_dir:
        return None
    if cfg.runner.task_type in ("offline", "reward_model", "sft"):
        return "data.train_data_paths=[{}]"
    return "algorithm.demo_buffer.load_path={}"


def _config(recipe: str, overrides: Sequence[str]) -> Any:
    from rlinf.config import build_config, validate_cfg

    return validate_cfg(build_config(recipe, overrides))


def starts_of(folder: Path, seeds: Sequence[int]) -> dict[int, Path]:
    """Return the run of each seed in the folder of an earlier benchmark.

    Raises:
        ValueError: a seed has none there, or none that has finished.
    """
    _, runs = read_runs([folder])
    if missing := sorted(set(seeds) - {run.seed for run in runs}):
        raise ValueError(f"{folder} has no finished run of the seeds {missing} to start from")
    return {seed: next(folder.resolve().glob(f"*-seed{seed}/")) for seed in seeds}


def read_run(folder: Path, seed: int, wall_seconds: float) -> Run:
    """Read a finished run from its folder."""
    steps = [line for line in curves.read_metrics(folder) if "time/step" in line]
    curve = curves.read_curve(folder)
    return Run(
        seed=seed,
        curve=curve,
        steps=int(steps[-1][curves.UNITS[curve.unit]]),
        training_seconds=sum(line["time/step"] for line in steps),
        wall_seconds=wall_seconds,
    )


def note_about(
    folder: Path, recipe: str, overrides: Sequence[str], command: Sequence[str]
) -> dict[str, Any]:
    """Leave beside the runs what `read_runs` has to know of them, and return it."""
    about = {"recipe": recipe, "overrides": list(overrides), **facts_of(command)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ABOUT).write_text(json.dumps(about, indent=1))
    return about


def read_runs(folders: Sequence[Path]) -> tuple[dict[str, Any], list[Run]]:
    """Read runs that were made before, each seed in a folder of its own or several in one.

    Returns:
        What was noted about the first folder, and the finished runs of all, by seed.

    Raises:
        ValueError: a folder is not one of this benchmark's, two are not of the same recipe and
            overrides, or two have the same seed.
    """
    first: dict[str, Any] = {}
    runs: dict[int, Run] = {}
    for folder in folders:
        note = folder / _ABOUT
        if not note.is_file():
            raise ValueError(f"{note} is not there: give folders that --log-path was filled with")
        about = json.loads(note.read_text())
        first = first or about
        for key in ("recipe", "overrides"):
            if about[key] != first[key]:
                raise ValueError(
                    f"{folder} and {folders[0]} do not belong together: {key} {about[key]} and "
                    f"{first[key]}"
                )
        for place in sorted(folder.glob(f"{about['recipe']}-seed*/summary.json")):
            summary = json.loads(place.read_text())
            seed = int(summary["seed"])
            if summary["status"] != "finished":
                _say(f"left out: seed {seed} in {folder}, which is {summary['status']}")
            elif seed in runs:
                raise ValueError(f"{folder} has seed {seed}, as another of the folders does")
            else:
                runs[seed] = read_run(place.parent, seed, summary["wall_seconds"])
    if not runs:
        raise ValueError(f"no finished run in {', '.join(map(str, folders))}")
    return first, [runs[seed] for seed in sorted(runs)]


# -- what it keeps ---------------------------------------------------------------------------------


def write_curves(about: dict[str, Any], by_seed: Mapping[int, Curve]) -> str:
    """Write the recipe's curve file; say where, and how far its band can be trusted.

    Args:
        about: `recipe`, `overrides`, and facts that the file keeps.
        by_seed: the curves.
    """
    from rlinf.config.load import find_config

    facts = dict(about)
    recipe, overrides = facts.pop("recipe"), facts.pop("overrides")
    folder, name = find_config(recipe, None)
    found = curves.gather(name, overrides, by_seed, facts)
    path = curves.path_for(folder, name)
    curves.save(found, path)
    inside = found.seeds_inside()
    return (
        f"{path}: {len(inside)} of {len(by_seed)} seeds stay inside the band of the others "
        f"({found.metric})"
    )


def facts_of(command: Sequence[str]) -> dict[str, Any]:
    """Return who made the curves, where, and with which versions."""
    from rlinf.runners.run_folder import versions

    return {
        "command": shlex.join(["python", "-m", "benchmarks.learning", *command]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "versions": versions(),
    }


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--recipe", default="metaworld_ppo_mlp", metavar="NAME")
    options.add_argument("--seeds", type=int, default=10, metavar="N", help="how many (10)")
    options.add_argument("--first-seed", type=int, default=0, metavar="S", help="the first (0)")
    options.add_argument("--jobs", type=int, default=1, metavar="N", help="seeds at a time (1)")
    options.add_argument("--quick", action="store_true", help="2 seeds, 6 steps: does it work?")
    options.add_argument("--write", action="store_true", help="write the recipe's curve file")
    options.add_argument(
        "--eval-episodes",
        type=int,
        metavar="N",
        help=f"of each ({EPISODES}; of a language model, prompts, as many as its recipe has)",
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="where to write all runs")
    options.add_argument(
        "--log-path", type=Path, default=ROOT / "logs" / "learning", metavar="DIR", help="of runs"
    )
    options.add_argument(
        "--from", type=Path, dest="start", metavar="DIR", help="start from the runs of DIR"
    )
    options.add_argument(
        "--read", type=Path, nargs="+", metavar="DIR", help="tell of runs made before, train none"
    )
    options.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="of the recipe")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    if args.quick and args.write:
        parser().error("--quick runs are too short to be written as a recipe's curves")
    for name in ("seeds", "jobs", "eval_episodes"):
        if (value := getattr(args, name)) is not None and value < 1:
            option = f"--{name.replace('_', '-')}"
            parser().error(f"{option} {value}: at least one is needed")
    failures: list[str] = []
    if args.read:
        if args.overrides:
            parser().error(f"--read trains nothing, so {shlex.join(args.overrides)} has no use")
        try:
            about, runs = read_runs(args.read)
        except ValueError as error:
            parser().error(str(error))
        print(f"{about['machine']}. Read from {', '.join(map(str, args.read))}.")
        print(f"{about['recipe']}; {about['date']}.\n")
    else:
        try:
            about, runs, failures = _train_all(args, argv)
        except ValueError as error:
            parser().error(str(error))
    print(table(runs))
    for failure in failures:
        print(f"\nFAILED {failure}")
    if args.json is not None:
        content = {**about, "runs": [asdict(run) for run in runs]}
        args.json.write_text(json.dumps(content, indent=1))
    if args.write and not failures:
        print("\n" + write_curves(about, {run.seed: run.curve for run in runs}))
    asked = len(runs) + len(failures)
    print("\n" + conclusion(runs, asked, WITHIN.get(about["recipe"])))
    return 1 if failures else 0


def _train_all(
    args: argparse.Namespace, argv: Sequence[str]
) -> tuple[dict[str, Any], list[Run], list[str]]:
    """Train all seeds that the options ask for: what is noted of them, the runs, the failures."""
    given = [*args.overrides, *(_few_steps(args.recipe) if args.quick else [])]
    # What was given goes last: it may change the evaluations, too.
    overrides = [*evaluation_overrides(args.recipe, given, args.eval_episodes), *given]
    seeds = range(args.first_seed, args.first_seed + (2 if args.quick else args.seeds))
    folder = args.log_path.resolve() / time.strftime("%Y%m%d-%H%M%S")
    # A run that is under way is ended on this way out, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    busy = busy_share()
    starts = starts_of(args.start, seeds) if args.start else {}
    about = note_about(folder, args.recipe, overrides, argv)

    def attempt(seed: int) -> Run | str:
        _say(f"seed {seed} of {seeds[0]} to {seeds[-1]}")
        try:
            run = train(args.recipe, seed, overrides, folder, starts.get(seed))
        except (RunFailed, curves.NoCurve) as failure:
            _say(f"FAILED {failure}")
            return str(failure)
        _say(table([run]).splitlines()[-1])
        return run

    if args.jobs == 1:
        results = [attempt(seed) for seed in seeds]
    else:
        with ThreadPoolExecutor(args.jobs) as pool:
            try:
                results = list(pool.map(attempt, seeds))
            except BaseException:
                # Threads wait for their runs: end these, each of which has a cluster to end.
                pool.shutdown(wait=False, cancel_futures=True)
                for run in psutil.Process().children():
                    run.terminate()
                raise
    idle = "idle" if busy <= IDLE_LIMIT else "**not idle: speeds do not count**"
    if args.jobs > 1:
        idle += f"; {args.jobs} seeds at a time: **speeds do not count**"
    print(f"{describe_machine()}. Others used {busy:.0%} of it before: {idle}.")
    print(f"{args.recipe} {shlex.join(given)}".rstrip() + f"; {time.strftime('%Y-%m-%d')}.\n")
    runs = [result for result in results if isinstance(result, Run)]
    return about, runs, [result for result in results if isinstance(result, str)]


def _few_steps(recipe: str) -> list[str]:
    """Return what makes a run short, by the limit that its recipe has."""
    runner = _config(recipe, []).runner
    return [f"runner.{'max_steps' if runner.max_steps > 0 else 'max_epochs'}=6"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
