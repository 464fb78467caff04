"""Embodied training with rollout and actor on one GPU: speed, overlap and a picture of it.

Usage, from the root of the repository on a machine with a GPU:

    python -m benchmarks.gpu_embodied --out FOLDER

Trains the default job on the CPU and on the GPU, and then 1,024 envs with a policy of ten million
parameters, with one and with two pipeline stages. Prints one table; draws one rollout of the last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

BIG = "actor.model.hidden_sizes=[2200,2200,2200]"


def jobs(workers: int, many: int) -> dict[str, list[str]]:
    """Return the overrides of each run."""
    gpu = [_placement(workers)]
    big = [
        BIG,
        f"env.train.total_num_envs={many}",
        f"env.eval.total_num_envs={many}",
        f"runner.eval_episodes={many}",
        "runner.max_epochs=8",
        f"actor.global_batch_size={many * 100 // 4}",
        f"actor.micro_batch_size={many * 100 // 4}",
        "algorithm.update_epoch=5",
    ]
    cpu = "cluster.component_placement={actor: 0, rollout: 0, env: 0-1}"
    return {
        "default job, rollout and actor on the GPU": [_placement(2)],
        f"{many} envs, 10M parameters, 1 stage": [*gpu, *big],
        f"{many} envs, 10M parameters, 2 stages": [*gpu, *big, "rollout.pipeline_stage_num=2"],
    } | ({} if os.environ.get("SKIP_CPU") else {"default job, all on the CPU": [cpu]})


def _placement(workers: int) -> str:
    envs = f"{{node_group: node, placement: '0:0-{workers - 1}'}}"
    return f"cluster.component_placement={{actor: 0, rollout: 0, env: {envs}}}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--workers", type=int, default=16, help="env processes")
    parser.add_argument("--envs", type=int, default=1024)
    args = parser.parse_args()
    rows = []
    for name, overrides in jobs(args.workers, args.envs).items():
        folder = args.out / name.replace(" ", "_").replace(",", "")
        facts = train(folder, overrides)
        rows.append((name, facts))
        print(row(name, folder, facts), flush=True)
    print("\n| run | env steps/s | in rollout | seconds: rollout, update, sync | success |")
    print("|---|---:|---:|---|---:|")
    for name, _ in rows:
        folder = args.out / name.replace(" ", "_").replace(",", "")
        print(row(name, folder, json.loads((folder / "summary.json").read_text())))
    return 0


def train(folder: Path, overrides: list[str]) -> dict:
    """Run one job and return its summary."""
    command = [sys.executable, "-m", "rlinf.cli", "train", "metaworld_ppo_mlp", *overrides]
    command += [
        f"runner.run_dir={folder}",
        "env.eval.video_cfg.save_video=false",
        "runner.progress=off",
    ]
    subprocess.run(command, check=True)
    return json.loads((folder / "summary.json").read_text())


def row(name: str, folder: Path, facts: dict) -> str:
    """Return a line of the table; medians over steps, the first left out."""
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "time/step" in step][1:]

    def median(key: str) -> float:
        return statistics.median(step[key] for step in steps)

    whole, play, learn = (
        median(f"time/{key}") for key in ("step", "generate_rollouts", "training")
    )
    sync = whole - play - learn - median("time/advantages")
    success = facts["evaluation"].get("eval/success_once", float("nan"))
    speed = median("env/steps_per_second")
    return (
        f"| {name} | {speed:,.0f} | {speed * whole / play:,.0f} | "
        f"{play:.2f}, {learn:.2f}, {sync:.3f} | {success:.0%} |"
    )


def picture(folder: Path, path: Path) -> None:
    """Draw the middle of the rollout of the last step."""
    from rlinf.cli.timeline.lanes import load_timeline
    from rlinf.cli.timeline.picture import draw

    timeline = load_timeline(folder)
    step = timeline.steps[-1]
    middle = step.begin + (step.end - step.begin) // 5
    draw(timeline, middle, middle + 120_000_000, path, folder.name)


if __name__ == "__main__":
    sys.exit(main())
