"""`rlinf export`: turns a checkpoint into a folder that loads without this package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

FORMATS = {
    "safetensors": "weights, settings and a plain PyTorch module",
    "hf": "the same for transformers: AutoModel.from_pretrained(FOLDER, trust_remote_code=True)",
}
"""Formats, and what each is."""

_EXAMPLES = """\
examples:
  rlinf export logs/metaworld_ppo_mlp --to safetensors           # its newest checkpoint
  rlinf export logs/metaworld_ppo_mlp/checkpoints/global_step_30 --to hf --out my_policy
"""


def add_parser(commands: Any) -> None:
    """Add `export` to the sub-commands."""
    formats = "; ".join(f"{name}: {about}" for name, about in FORMATS.items())
    parser = commands.add_parser(
        "export",
        help="turn a checkpoint into a folder that loads without this package",
        description="Turn a checkpoint into a folder that loads without this package.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "checkpoint", metavar="CKPT", help="folder of a checkpoint, or of a run: its newest one"
    )
    parser.add_argument("--to", choices=FORMATS, required=True, help=formats)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="where to write; absent or empty; by default `export/global_step_<N>-<format>` of the "
        "run",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export.

    Returns:
        0; 1 if the checkpoint cannot be exported.
    """
    from rlinf.hybrid_engines.export import export_checkpoint

    try:
        folder = export_checkpoint(args.checkpoint, args.to, args.out)
    except (ValueError, OSError) as error:
        print(f"rlinf export: {error}", file=sys.stderr)
        return 1
    print(f"written: {folder}")
    for path in sorted(folder.iterdir()):
        print(f"  {path.name:<28} {path.stat().st_size:>12,} bytes")
    print(f"{folder / 'README.md'} shows how to load it")
    return 0
