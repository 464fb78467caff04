"""Trains a policy on demonstrations and then by reinforcement, and shows before and after.

    python examples/embodiment/train_vla.py                          # make train-vla
    python examples/embodiment/train_vla.py --recipes metaworld_sft_flow metaworld_grpo_flow
    python examples/embodiment/train_vla.py runner.seed=2            # keys of both trainings

It runs `rlinf collect`, `rlinf train` of the supervised recipe and `rlinf train` of the other, in a
folder of their own. Both play the same held-out starts. It fails unless the 95 % interval of the
success afterwards lies above the one before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf.envs.errors import MissingSimulator
from rlinf.envs.video_pairs import beside

SUMMARY, VIDEO = "vla_summary.json", "before_after.mp4"
METRIC = "eval/success_once"


def main(argv: Sequence[str] | None = None) -> int:
    """Train twice and compare; return 0 if the policy became better, 1 if not."""
    args, keys = _parser().parse_known_args(argv)
    if wrong := [key for key in keys if "=" not in key or key.startswith("-")]:
        raise SystemExit(f"error: {' '.join(wrong)} is neither an option nor KEY=VALUE")
    place = args.folder.resolve()
    if (place / SUMMARY).exists():
        raise SystemExit(f"error: {place} holds a comparison already: name another with --folder")
    supervised, reinforced = place / "supervised", place / "reinforced"
    first, second = args.recipes
    data = f"data.train_data_paths=[{place / 'demonstrations'}]"
    rlinf("collect", first, f"collect.save_dir={place / 'demonstrations'}", data, *keys)
    rlinf("train", first, data, f"runner.run_dir={supervised}", *keys)
    shown = start_to_show(supervised)
    rlinf(
        *("train", second, f"runner.ckpt_path={supervised}", f"runner.run_dir={reinforced}"),
        f"env.eval.video_cfg.episodes=[{shown}]",
        *keys,
    )
    found = compare(supervised, reinforced)
    found["video"] = video(supervised, reinforced, shown, place / VIDEO)
    (place / SUMMARY).write_text(json.dumps(found, indent=1) + "\n")
    print(told(found))
    print(f"both summaries: {place / SUMMARY}")
    return 0 if found["improved"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipes",
        nargs=2,
        metavar=("SUPERVISED", "REINFORCED"),
        default=("metaworld_sft_oft", "metaworld_grpo_oft"),
        help="what to train (metaworld_sft_oft metaworld_grpo_oft)",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("logs/vla"), help="where all of it goes (logs/vla)"
    )
    return parser


def rlinf(*arguments: str) -> None:
    """Run a command of rlinf, and leave with its exit code if it fails."""
    print(f"$ rlinf {' '.join(arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "rlinf.cli", *arguments]).returncode
    if code:
        raise SystemExit(code)


def start_to_show(run: Path) -> int:
    """Return the first start that a policy failed at; the first of all if it failed at none."""
    episodes = _read(run / "evaluation.json")["episodes"]
    return next((each["id"] for each in episodes if not each["success_once"]), 0)


def compare(supervised: Path, reinforced: Path) -> dict[str, Any]:
    """Return both summaries, success before and after, and whether it is better.

    Raises:
        SystemExit: The runs did not play the same starts.
    """
    protocols = [_read(run / "evaluation.json")["protocol"] for run in (supervised, reinforced)]
    if protocols[0] != protocols[1]:
        raise SystemExit(f"error: the evaluations differ: {protocols[0]}; {protocols[1]}")
    summaries = [_read(run / "summary.json") for run in (supervised, reinforced)]
    before, after = (_interval(summary["evaluation"]) for summary in summaries)
    return {
        "protocol": protocols[0],
        "before": before,
        "after": after,
        "improved": after["low"] > before["high"],
        "supervised": summaries[0],
        "reinforced": summaries[1],
    }


def _interval(evaluation: dict[str, float]) -> dict[str, float]:
    return {
        "success": evaluation[METRIC],
        "low": evaluation[f"{METRIC}_low"],
        "high": evaluation[f"{METRIC}_high"],
        "episodes": evaluation["eval/episodes"],
    }


def video(supervised: Path, reinforced: Path, episode: int, target: Path) -> str | None:
    """Show one start twice; return where, or None with a warning if a video is missing."""
    name = f"videos/episode_{episode:04d}.mp4"
    try:
        sides = supervised / name, reinforced / name
        return str(beside(*sides, target, ("supervised", "reinforced")))
    except (MissingSimulator, FileNotFoundError, ValueError) as error:
        print(f"warning: no video of both: {error}", file=sys.stderr)
        return None


def told(found: dict[str, Any]) -> str:
    """Return the comparison in words."""
    lines = []
    for title, key in (("supervised", "before"), ("reinforced", "after")):
        own = found[key]
        lines.append(
            f"{title:<11} {own['success']:6.1%} of {own['episodes']:.0f} held-out starts "
            f"(95 %: {own['low']:.1%} to {own['high']:.1%})"
        )
    if found["video"]:
        lines.append(f"the same start twice: {found['video']}")
    if not found["improved"]:
        lines.append("error: the interval after does not lie above the one before")
    return "\n".join(lines)


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


if __name__ == "__main__":
    sys.exit(main())
