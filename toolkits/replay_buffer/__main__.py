"""The command line of the tool."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkits.replay_buffer.episodes import export_episodes, import_episodes
from toolkits.replay_buffer.operations import describe, merge, trim


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    args = _parser().parse_args(arguments)
    try:
        print(args.run(args))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m toolkits.replay_buffer", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, words: str, *folders: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, description=words)
        for folder in folders:
            sub.add_argument(folder, type=Path)
        return sub

    sub = command("print", "Print what a saved buffer holds.", "folder")
    sub.set_defaults(run=_print)
    sub = command("merge", "Join saved buffers into one.", "out")
    sub.add_argument("folders", type=Path, nargs="+")
    sub.add_argument("--ranks", type=int, default=1, help="shards of the new buffer")
    sub.set_defaults(run=_merge)
    sub = command("trim", "Keep the newest part of a buffer.", "folder", "out")
    sub.add_argument("--transitions", type=int, help="most transitions")
    sub.add_argument("--episodes", type=int, help="most episodes")
    sub.set_defaults(run=_trim)
    sub = command("convert", "Turn a buffer into npz files, one per episode.", "folder", "out")
    sub.add_argument("--back", action="store_true", help="turn npz files into a buffer")
    sub.set_defaults(run=_convert)
    return parser


def _print(args: argparse.Namespace) -> str:
    lines = []
    for name, value in describe(args.folder).items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"  {key}: {what}" for key, what in value.items()]
        else:
            lines.append(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    return "\n".join(lines)


def _merge(args: argparse.Namespace) -> str:
    if args.ranks < 1:
        raise ValueError(f"--ranks is {args.ranks}; it is 1 or more")
    return f"{args.out}: {merge(args.folders, args.out, args.ranks)} transitions"


def _trim(args: argparse.Namespace) -> str:
    given = [value for value in (args.transitions, args.episodes) if value is not None]
    if not given or min(given) < 1:
        raise ValueError("say how much to keep: --transitions N or --episodes N, 1 or more")
    kept = trim(args.folder, args.out, args.transitions, args.episodes)
    return f"{args.out}: {kept} transitions"


def _convert(args: argparse.Namespace) -> str:
    change = import_episodes if args.back else export_episodes
    return f"{args.out}: {change(args.folder, args.out)} episodes"


if __name__ == "__main__":
    sys.exit(main())
