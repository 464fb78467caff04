"""`rlinf report RUN`: one page that shows a run, for the browser and without the network."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rlinf.cli.run_argument import ABOUT, run_argument


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "report",
        help="write one HTML page that shows a run",
        description="Write one self-contained HTML page that shows a run: result, curves, "
        "timeline, bottleneck, episodes, configuration, failure. Also of a run that is still "
        "going, or that failed.",
    )
    parser.add_argument("folder", type=run_argument, help=ABOUT)
    parser.add_argument("--out", metavar="FILE", help="page to write; RUN/report.html by default")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--max-video-mb",
        metavar="MB",
        type=float,
        default=20.0,
        help="videos to put into the page, together; others are linked (default: %(default)g)",
    )
    parser.add_argument(
        "--samples",
        metavar="N",
        type=int,
        default=24,
        help="episodes and responses of language models in the page (default: %(default)d)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    from rlinf.cli.report.page import write_report

    try:
        path = Path(args.out) if args.out else Path(args.folder) / "report.html"
        size = write_report(Path(args.folder), path, int(args.max_video_mb * 1e6), args.samples)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    written = f"{path} ({size / 1e6:.1f} MB)"
    if not args.open:
        print(f"{written}; open it in a browser")
    elif open_page(path):
        print(f"{written}; opened in the browser")
    else:
        print(f"{written}; no browser can be opened here: open it on a machine that has one")
    return 0


def open_page(path: Path) -> bool:
    """Open a page in the browser.

    Returns:
        Whether there is one. Without a screen there is none, unless BROWSER names a program: those
        for a text terminal run no scripts.
    """
    import webbrowser

    has_screen = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    try:
        return has_screen and webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False
