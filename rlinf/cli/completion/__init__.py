"""`rlinf completion`: a script with which a shell completes commands, recipes, runs and keys."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMPLETE = "__complete"
"""Hidden command that the scripts call with the words of the command line."""
SCRIPTS = Path(__file__).parent / "scripts"
SHELLS = {
    "bash": "echo 'eval \"$(rlinf completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(rlinf completion zsh)\"' >> ~/.zshrc",
    "fish": "rlinf completion fish > ~/.config/fish/completions/rlinf.fish",
}
"""Shells, and the line that installs completion for good."""


def add_parser(commands: Any) -> None:
    """Add `completion` to the sub-commands."""
    lines = "\n".join(f"  {line}" for line in SHELLS.values())
    parser = commands.add_parser(
        "completion",
        help="print a script that lets your shell complete commands, recipes, runs and keys",
        description="Print a script that lets your shell complete commands, options, recipes, "
        "folders of runs and keys of the config.",
        epilog=f"to install it, for new shells:\n{lines}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=list(SHELLS), help="which shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell.

    Returns:
        0.
    """
    print((SCRIPTS / f"rlinf.{args.shell}").read_text(encoding="utf-8"), end="")
    return 0


def complete(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Print what the last word may become: a line each, with a tab and a few words about it.

    Nothing is printed where a file may follow; shells complete those themselves.

    Args:
        parser: The parser of the whole command.
        words: The command line after `rlinf`, up to the cursor.

    Returns:
        0.
    """
    from rlinf.cli.completion.candidates import candidates

    for candidate in candidates(parser, list(words)):
        print(f"{candidate.text}\t{candidate.about}".rstrip())
    return 0
