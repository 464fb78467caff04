"""`rlinf train` and `rlinf eval`: run a recipe by name, or evaluate a checkpoint."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rlinf.cli import recipes
from rlinf.cli.overrides import add_config_arguments

_TRAIN_EXAMPLES = """\
examples:
  rlinf train --list
  rlinf train NAME
  rlinf train NAME runner.max_steps=3 cluster.num_nodes=2
  rlinf train path/to/my.yaml
"""
_EVAL_EXAMPLES = """\
examples:
  rlinf eval logs/metaworld_ppo_mlp                               # its newest checkpoint
  rlinf eval logs/metaworld_ppo_mlp/latest/checkpoints/global_step_30
  rlinf eval NAME actor.model.model_path=FOLDER                   # weights from elsewhere
"""


def add_parser(commands: Any) -> None:
    """Add `train` to the sub-commands."""
    parser = _add(commands, "train", "run a recipe by name", _TRAIN_EXAMPLES)
    add_config_arguments(parser, optional=True)
    parser.set_defaults(evaluate=False)


def add_eval_parser(commands: Any) -> None:
    """Add `eval` to the sub-commands."""
    about = "evaluate a checkpoint, or a recipe by name, without training"
    parser = _add(commands, "eval", about, _EVAL_EXAMPLES)
    what = "folder of a checkpoint or of a run, name of a recipe, or path to a YAML file"
    add_config_arguments(parser, about=what, optional=True)
    parser.set_defaults(evaluate=True)


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
    parser.set_defaults(run=run, command=command)
    return parser


def run(args: argparse.Namespace) -> int:
    """Replace this process by the entry script of the config.

    Returns:
        An exit code if nothing was started: 0 after `--list` and `--dry-run`, 1 if the config is
        not valid, 2 for wrong usage.
    """
    from rlinf.cli import checkpoint_config
    from rlinf.config import ConfigError

    if args.list:
        return _print_recipes()
    if args.config is None:
        print(f"rlinf {args.command}: name a CONFIG, or --list them", file=sys.stderr)
        return 2
    overrides = [*args.overrides, "runner.only_eval=true"] if args.evaluate else args.overrides
    try:
        name = args.config
        if args.evaluate and args.config_path is None:
            name = checkpoint_config.of(name) or name
        if args.evaluate and not recipes.trains(name, args.overrides, args.config_path):
            raise ValueError(f"{name} trains nothing, so there is nothing to evaluate")
        config = recipes.load(name, overrides, args.config_path)
        script = recipes.entry_script(config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"rlinf {args.command}: {error}", file=sys.stderr)
        return 2
    command = [sys.executable, str(script)]
    command += ["--config-path", str(config.folder), "--config-name", config.name]
    command += config.overrides
    if args.dry_run:
        print(shlex.join(command))
        return 0
    sys.stdout.flush()
    # No process stays in between: signals and the exit code are the script's own.
    os.execv(sys.executable, command)


def _print_recipes() -> int:
    from rlinf.utils.runs.folders import shown

    found = recipes.list_recipes()
    if not found:
        print("no recipes under examples/*/config of the current folder", file=sys.stderr)
        return 2
    width = max(len(recipe.name) for recipe in found)
    folder: Path | None = None
    for recipe in found:
        if recipe.path.parent != folder:
            folder = recipe.path.parent
            print(shown(folder))
        print(f"  {recipe.name:<{width}}  {recipe.about}".rstrip())
    return 0
