"""`rlinf runs tag`: give a run tags, or take them away."""

from __future__ import annotations

import argparse
import sys

from rlinf.cli.runs.find import chosen_run
from rlinf.utils.runs.folders import shown
from rlinf.utils.runs.tags import add_tags, read_tags, remove_tags


def run(args: argparse.Namespace) -> int:
    """Change the tags of a run and print those that it has then.

    Returns:
        0; 1 if there is no such run or tag; 2 if no tag to remove is named.
    """
    new, gone = args.tags, args.remove
    if gone == []:
        new, gone = [], args.tags
    if args.remove is not None and not gone:
        print("rlinf runs tag: name the tags to remove", file=sys.stderr)
        return 2
    try:
        folder = chosen_run(args.run_folder)
        if gone:
            remove_tags(folder, gone)
        if new:
            add_tags(folder, new)
    except (ValueError, OSError) as error:
        print(f"rlinf runs tag: {error}", file=sys.stderr)
        return 1
    print(f"{shown(folder)}: {', '.join(read_tags(folder)) or 'no tags'}")
    return 0
