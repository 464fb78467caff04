"""`rlinf runs`: list, compare, tag and delete runs."""

from rlinf.cli.runs.commands import add_parser

__all__ = ["add_parser"]
