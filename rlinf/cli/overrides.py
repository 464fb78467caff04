"""The arguments that commands on a config share: its name, overrides of it, and its folder."""

from __future__ import annotations

import argparse
from typing import Any


def add_config_arguments(
    parser: argparse.ArgumentParser,
    metavar: str = "CONFIG",
    about: str = "name of a recipe, or path to a YAML file",
    optional: bool = False,
) -> None:
    """Add CONFIG, KEY=VALUE and --config-path to a command.

    Overrides may stand before, between and after options; argparse by itself takes those that
    stand together.

    Args:
        parser: The command's own parser.
        metavar: What the config is called in the help.
        about: What it is.
        optional: The command has something to do without one.
    """
    parser.add_argument("config", metavar=metavar, nargs="?" if optional else None, help=about)
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="values to set in the config"
    )
    parser.add_argument("--config-path", metavar="DIR", help="folder of the config")
    parse = parser.parse_known_args

    def parse_known_args(*args: Any) -> tuple[argparse.Namespace, list[str]]:
        found, rest = parse(*args)
        left = [item for item in rest if item.startswith("-")]
        positional = [item for item in rest if not item.startswith("-")]
        if found.config is None and positional:
            found.config, *positional = positional
        found.overrides += positional
        return found, left

    parser.parse_known_args = parse_known_args
