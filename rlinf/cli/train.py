"""`rlinf train` and `rlinf eval`: run a recipe by name, or evaluate a checkpoint."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

from rlinf.cli import debug, recipes, seeds
from rlinf.cli.overrides import add_config_arguments
from rlinf.cli.runs.table import terminal_width

_TRAIN_EXAMPLES = """\
examples:
  rlinf train --list
  rlinf train NAME
  rlinf train NAME runner.max_steps=3 cluster.num_nodes=2
  rlinf train path/to/my.yaml
  rlinf train NAME --seeds 1-3                   # once per seed, and mean and spread of them
  rlinf train NAME --debug                       # pdb where something is raised
"""
_EVAL_EXAMPLES = """\
examples:
  rlinf eval logs/metaworld_ppo_mlp                               # its newest checkpoint
  rlinf eval logs/metaworld_ppo_mlp/latest/checkpoints/global_step_30
  rlinf eval NAME actor.model.model_path=FOLDER                   # weights from elsewhere
"""

_LEAST_COLUMNS = 24
"""Width of a description below which it is not worth a column of its own."""


def add_parser(commands: Any) -> None:
    """Add `train` to the sub-commands."""
    parser = _add(commands, "train", "run a recipe by name", _TRAIN_EXAMPLES)
    add_config_arguments(parser, optional=True)
    parser.add_argument(
        "--seeds",
        metavar="S,S,...",
        type=seeds.parse_seeds,
        help="train once per seed, one run after the other: 1,2,3 or 1-3",
    )
    parser.set_defaults(evaluate=False)


def add_eval_parser(commands: Any) -> None:
    """Add `eval` to the sub-commands."""
    about = "evaluate a checkpoint, or a recipe by name, without training"
    parser = _add(commands, "eval", about, _EVAL_EXAMPLES)
    what = "folder of a checkpoint or of a run, name of a recipe, or path to a YAML file"
    add_config_arguments(parser, about=what, optional=True)
    parser.set_defaults(evaluate=True, seeds=None)


def _add(commands: Any, command: str, about: str, examples: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        command,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="list the recipes and stop")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command that would run, and stop"
    )
    debug.add_arguments(parser)
    parser.set_defaults(run=run, command=command)
    return parser


def run(args: argparse.Namespace) -> int:
    """Replace this process by the entry script of the config, or run it once per seed.

    Returns:
        An exit code if this process was not replaced: 0 after `--list` and `--dry-run`, that of
        the series after `--seeds`, 1 if the config is not valid, 2 for wrong usage.
    """
    from rlinf.config import ConfigError

    if args.list:
        return _print_recipes()
    if args.config is None:
        print(f"rlinf {args.command}: name a CONFIG, or --list them", file=sys.stderr)
        return 2
    series: list[seeds.SeedRun] = []
    try:
        config = _load(args)
        command = _command(config)
        if args.seeds is not None:
            series = seeds.plan(command, args.seeds, config, args.overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"rlinf {args.command}: {error}", file=sys.stderr)
        return 2
    if args.dry_run:
        for words in [run.command for run in series] or [command]:
            print(shlex.join(words))
        return 0
    if series:
        return seeds.run_series(series)
    sys.stdout.flush()
    if args.debug is not None:
        os.environ[debug.VARIABLE] = args.debug
    # No process stays in between: signals and the exit code are the script's own.
    os.execv(sys.executable, command)


def _load(args: argparse.Namespace) -> recipes.Config:
    """Find and check the config of `train`, or of `eval`."""
    from rlinf.cli import checkpoint_config

    name = args.config
    if args.debug is not None and args.seeds is not None:
        raise ValueError("--debug is for one run, and --seeds makes several; leave one of them out")
    if not args.evaluate:
        return recipes.load(name, _overrides(args, name), args.config_path)
    if args.config_path is None:
        name = checkpoint_config.of(name) or name
        if _means_run(name):
            from rlinf.cli.runs.find import not_a_run

            raise ValueError(not_a_run(name))
    if not recipes.trains(name, args.overrides, args.config_path):
        raise ValueError(f"{name} trains nothing, so there is nothing to evaluate")
    return recipes.load(name, [*_overrides(args, name), "runner.only_eval=true"], args.config_path)


def _means_run(name: str) -> bool:
    """Return whether a name that is no config can only be meant as the folder of a run."""
    from rlinf.config import ConfigError
    from rlinf.config.load import config_names, find_config
    from rlinf.config.overrides import SUFFIXES

    path = Path(name).expanduser()
    if path.suffix in SUFFIXES:
        return False
    try:
        find_config(name, None)
    except ConfigError:
        return path.is_dir() or (path.parent != Path(".") and not config_names(path.parent))
    return False


def _overrides(args: argparse.Namespace, name: str) -> list[str]:
    """Return the overrides of the config, with what a debugged run needs."""
    if args.debug is None:
        return list(args.overrides)
    needed = debug.overrides_of(args.debug, name, args.overrides, args.config_path)
    return [*args.overrides, *needed]


def _command(config: recipes.Config) -> list[str]:
    """Return what runs a config."""
    command = [sys.executable, str(recipes.entry_script(config))]
    command += ["--config-path", str(config.folder), "--config-name", config.name]
    return command + list(config.overrides)


def _print_recipes() -> int:
    from rlinf.utils.runs.folders import shown

    found = recipes.list_recipes()
    if not found:
        print("no recipes under examples/*/config of the current folder", file=sys.stderr)
        return 2
    width, columns = max(len(recipe.name) for recipe in found), terminal_width()
    folder: Path | None = None
    for recipe in found:
        if recipe.path.parent != folder:
            folder = recipe.path.parent
            print(shown(folder))
        print(_entry(recipe.name, _about(recipe), width, columns))
    return 0


def _about(recipe: recipes.Recipe) -> str:
    """Return what a recipe does: the comment at its top as far as its first sentence goes."""
    said = recipe.about
    for line in recipe.path.read_text(encoding="utf-8").splitlines()[1:]:
        if said.endswith((".", "!", "?")) or not line.startswith("#"):
            break
        said = f"{said} {line.lstrip('# ').rstrip()}"
    return said


def _entry(name: str, about: str, width: int, columns: int | None) -> str:
    """Return a recipe of the list.

    Args:
        name: Of the recipe.
        about: What it does.
        width: Of the longest name.
        columns: Width of the terminal; None is one line, however long.
    """
    line, indent = f"  {name:<{width}}  {about}".rstrip(), " " * (width + 4)
    if columns is None or len(line) <= columns:
        return line
    below = columns - len(indent) < _LEAST_COLUMNS
    indent = " " * 6 if below else indent
    text = textwrap.fill(
        about,
        width=columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"  {name}\n{text}" if below else f"  {name:<{width}}  {text.lstrip()}"
