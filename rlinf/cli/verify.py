"""`rlinf verify`: run a recipe and say whether it learns as its curve file says it does."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rlinf.cli.overrides import add_config_arguments

if TYPE_CHECKING:
    from rlinf.cli.curves import CurveFile, Point, Verdict

_EXAMPLES = """\
examples:
  rlinf verify metaworld_ppo_mlp
  rlinf verify metaworld_ppo_mlp --seed 7 runner.max_epochs=20
  rlinf verify metaworld_ppo_mlp actor.optim.lr=3e-3     # does it still learn?
"""


def add_parser(commands: Any) -> None:
    """Add `verify` to the sub-commands."""
    parser = commands.add_parser(
        "verify",
        help="run a recipe and compare its learning curve with the known ones",
        description="Run a recipe and say whether its evaluations stay inside the band of the "
        "recipe's curve file, where the band can tell. Exit code 1 if one is worse than the band; "
        "better ones are fine. Exit code 2 if the run is too short to be judged.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser, metavar="RECIPE")
    parser.add_argument(
        "--seed", metavar="S", type=int, help="runner.seed; the recipe's own if not"
    )
    parser.add_argument(
        "--curve", metavar="FILE", type=Path, help="curve file; the recipe's if not"
    )
    parser.add_argument(
        "--log-path", metavar="DIR", default="logs/verify", help="where the run is written"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a recipe and compares it.

    Returns:
        0 if the run stays inside the band or above it; 1 if it does not, or fails, or its config
        is not valid; 2 for wrong usage, or if neither can be said.
    """
    from rlinf.cli import curves
    from rlinf.config import ConfigError

    try:
        known = _find(args.config, args.config_path, args.curve)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"rlinf verify: {error}", file=sys.stderr)
        return 2
    print("\n".join(_about(known)), flush=True)
    folder = Path(args.log_path).resolve() / f"{known.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    # Of two values of a key the later one holds: the user's.
    arguments = [args.config, *known.overrides, *args.overrides]
    arguments += [] if args.seed is None else [f"runner.seed={args.seed}"]
    arguments += [] if args.config_path is None else ["--config-path", args.config_path]
    code = run_recipe(arguments, folder)
    if code:
        print(f"rlinf verify: the run ended with exit code {code}", file=sys.stderr)
        return 1
    try:
        curve = curves.read_curve(folder).counted_in(known.unit)
        verdict = curves.compare(curve.steps, curve.values[known.metric], known.band())
    except curves.NoCurve as error:
        print(f"rlinf verify: {error}", file=sys.stderr)
        return 1
    print("\n".join(["", *table(verdict, known), "", *_conclusion(verdict, known)]))
    if not verdict.judged:
        return 2
    return 0 if verdict.ok else 1


def run_recipe(arguments: Sequence[str], folder: Path, stdout: IO[str] | None = None) -> int:
    """Run `rlinf train` as a process of its own.

    Args:
        arguments: what stands behind `rlinf train`.
        folder: folder of the run; one that is there already would be added to.
        stdout: where the run prints, the terminal by default; progress goes there in any case.

    Returns:
        Its exit code.
    """
    command = [sys.executable, "-m", "rlinf.cli", "train", *arguments]
    command += [f"runner.run_dir={folder}"]
    with subprocess.Popen(command, stdout=stdout) as process:
        try:
            return process.wait()
        except BaseException:
            # Not killed: it has a cluster to end.
            process.terminate()
            raise


def table(verdict: Verdict, known: CurveFile) -> list[str]:
    """Return the evaluations beside the band, one line each."""
    metric, wide = known.metric, max(10, len(known.unit))
    lines = [f"{known.unit:>{wide}}  {_heading(metric):>8}  {'band':>17}  place"]
    for point in verdict.points:
        value, low, high = (_show(v, metric) for v in (point.value, point.low, point.high))
        place = point.place if point.judges else "cannot tell"
        lines.append(f"{point.steps:>{wide},}  {value:>8}  {low:>7} – {high:>7}  {place}")
    return lines


def _find(name: str, config_path: str | None, given: Path | None) -> CurveFile:
    """Return the curve file of a recipe.

    Raises:
        ValueError: there is none, it is broken, or its band takes every run.
    """
    from rlinf.cli import curves
    from rlinf.config import config_folders
    from rlinf.config.load import find_config

    folder, recipe = find_config(name, config_path)
    path = given or curves.path_for(folder, recipe)
    if not path.is_file():
        others = curves.recipes_with_curves([folder, *config_folders()])
        raise ValueError(
            f"there is no curve file {path}; recipes that have one: {', '.join(others) or 'none'}. "
            f"Make one with: python -m benchmarks.learning --recipe {recipe} --write"
        )
    known = curves.load(path)
    if not known.band().judging:
        raise ValueError(
            f"{path} can judge no run: at none of its evaluations is the band above "
            f"{_show(known.floor, known.metric)}, which a run reaches that learns nothing. Make it "
            f"anew, with longer runs: python -m benchmarks.learning --recipe {recipe} --write"
        )
    return known


def _about(known: CurveFile) -> list[str]:
    """Return what the run is compared with."""
    from rlinf.runners.run_folder import versions

    seeds = ", ".join(map(str, known.curves))
    made = known.facts.get("date")
    lines = [f"{known.recipe}: band of seeds {seeds}" + (f", made on {made}" if made else "")]
    here, there = versions(), known.facts.get("versions", {})
    differing = [
        f"{name} {there[name]} (here {here[name]})"
        for name in there
        if name in here and here[name] != there[name]
    ]
    if differing:
        lines.append(f"the band was made with {', '.join(differing)}")
    return [*lines, _what_it_takes(known)]


def _what_it_takes(known: CurveFile) -> str:
    """Return from where on the band judges, and what a run has to reach."""
    band = known.band()
    first, last = band.judging[0], band.judging[-1]
    needed = [_show(edges[0], known.metric) for steps in (first, last) if (edges := band.at(steps))]
    return (
        f"judged from {first:,} {known.unit} on: {_heading(known.metric)} must be {needed[0]} "
        f"there, and {needed[-1]} after {last:,}; earlier the band cannot tell"
    )


def _conclusion(verdict: Verdict, known: CurveFile) -> list[str]:
    lines = []
    if verdict.not_compared:
        first, last = known.steps[0], known.steps[-1]
        lines.append(
            f"{verdict.not_compared} evaluations are outside of {first:,} to {last:,} "
            f"{known.unit}, which is all that the band knows"
        )
    above = sum(point.place == "above" for point in verdict.points)
    if above:
        lines.append(f"{above} of {len(verdict.points)} evaluations are better than the band: fine")
    if verdict.first_below is not None:
        return [*lines, _below(verdict.first_below, known)]
    reached, end = verdict.points[-1].steps, known.steps[-1]
    if not verdict.judged:
        return [
            *lines,
            f"cannot tell: the run ended after {reached:,} {known.unit}, and the band judges from "
            f"{known.band().judging[0]:,} on; let it train longer",
        ]
    count = f"{len(verdict.judged)} of {len(verdict.points)} evaluations can tell"
    if reached < end:
        said = f"inside as far as it went, {reached:,} {known.unit} of the band's {end:,}; {count}"
        return [*lines, said]
    return [*lines, f"{count}, and none is below the band", f"{known.recipe} learns as it should"]


def _below(point: Point, known: CurveFile) -> str:
    return (
        f"outside of the band, first after {point.steps:,} {known.unit}: "
        f"{_show(point.value, known.metric)} is below {_show(point.low, known.metric)}"
    )


def _heading(metric: str) -> str:
    return {"success_once": "success"}.get(metric, metric)


def _show(value: float, metric: str) -> str:
    from rlinf.cli.runs.score import RATES

    return f"{max(0.0, min(1.0, value)):.0%}" if metric in RATES else f"{value:,.1f}"
