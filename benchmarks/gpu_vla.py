"""Large vision-language-action policies on one GPU: speed, memory, agreement, modes side by side.

Usage, from the root of the repository on a machine with a GPU and a renderer for MuJoCo:

    python -m benchmarks.gpu_vla --out FOLDER
    python -m benchmarks.gpu_vla --out FOLDER --parts lora --steps 5
    python -m benchmarks.gpu_vla --out FOLDER --tiny     # on a CPU: does everything work?

The policies are `openvla_oft` with random weights and the shapes of real ones. They learn by GRPO
from pictures of MetaWorld, with dense rewards: random weights do not succeed.

Parts:

- `full`: 0.5 billion weights, all of them trained.
- `lora`: the shape of OpenVLA, seven billion weights, with adapters; its base is written first.
- `modes`: the 0.5 billion again. Collocated, actor and rollout take turns in the memory of the GPU;
  disaggregated, both stay there and so do their envs in processes of their own; hybrid, the same
  with one and with two pipeline stages and half of the env processes. Each leaves a picture.

Memory is that of the device: what `rlinf check` predicts, and what torch has reserved. Agreement is
the mean difference between log-probabilities of the rollout and of the actor, at its worst step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPE = "metaworld_grpo_oft_rgb"
GIB = 1 << 30
COMPONENTS = {"actor": "ActorGroup", "rollout": "RolloutGroup"}
"""What has a model on the GPU, and the name of its workers."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a policy; `tower` is the vision tower, None that of the recipe."""

    llm: str
    tower: str | None = None
    pixels: int = 48


SHAPES = {
    "tiny": Shape("hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, heads: 4"),
    "0.5B": Shape(
        "hidden_size: 1280, intermediate_size: 3456, num_hidden_layers: 24, heads: 20",
        "{embed_dim: 384, depth: 12, num_heads: 6, mlp_dim: 1536, patch_size: 14, image_size: 224}",
        224,
    ),
    "7B": Shape(
        "hidden_size: 4096, intermediate_size: 11008, num_hidden_layers: 32, heads: 32",
        "{embed_dim: 1152, depth: 27, num_heads: 16, mlp_dim: 4304, patch_size: 14, "
        "image_size: 224}",
        224,
    ),
}


@dataclass(frozen=True)
class Job:
    """A run: its name, its shape, what it is told besides, and the folder of its weights if any."""

    name: str
    shape: str
    keys: tuple[str, ...] = ()
    base: Path | None = None


def jobs(part: str, args: argparse.Namespace) -> list[Job]:
    """Return the runs of a part."""
    small = "tiny" if args.tiny else "0.5B"
    large = "tiny" if args.tiny else "7B"
    if part == "full":
        return [Job("full", small, placed(args, 2))]
    if part == "lora":
        adapters = (
            "actor.model.is_lora=true",
            "actor.model.lora_rank=32",
            "actor.fsdp_config.gradient_checkpointing=true",
        )
        return [Job("lora", large, (*placed(args, 2), *adapters), args.out / "base")]
    turns = ("actor.enable_offload=true", "rollout.enable_offload=true")
    half = placed(args, 1)
    return [
        Job("collocated", small, (*placed(args, 2), *turns)),
        Job("disaggregated", small, placed(args, 2)),
        Job("hybrid, 1 stage", small, half),
        Job("hybrid, 2 stages", small, (*half, "rollout.pipeline_stage_num=2")),
    ]


def placed(args: argparse.Namespace, share: int) -> tuple[str, ...]:
    """Return the placement: envs on half of the cores by `share`, models on the GPU or slot 0."""
    workers = max(1, args.workers * share // 2)
    own = "rollout.in_env_process=false"
    if args.tiny:
        return (
            f"cluster.component_placement={{actor: 0, rollout: 0, env: 0-{workers - 1}}}",
            own,
        )
    envs = f"{{node_group: node, placement: '0:0-{workers - 1}'}}"
    return (f"cluster.component_placement={{actor: 0, rollout: 0, env: {envs}}}", own)


def keys_of(job: Job, args: argparse.Namespace) -> list[str]:
    """Return all overrides of a run."""
    steps = 16 if args.tiny else 48
    samples = args.envs * steps // 8
    keys = [
        "runner.ckpt_path=null",
        f"runner.max_epochs={args.steps}",
        "runner.val_check_interval=-1",
        "runner.eval_at_start=false",
        "runner.save_last=false",
        "runner.agreement.interval=1",
        "runner.progress=plain",
        "runner.logger.logger_backends=[jsonl]",
        "env.eval=null",
        f"env.train.total_num_envs={args.envs}",
        f"env.train.max_episode_steps={steps}",
        "env.train.reward=dense",
        "env.train.terminate_on_success=false",
        "algorithm.filter_rewards=false",
        "algorithm.update_epoch=1",
        f"actor.global_batch_size={samples // 2}",
        f"actor.micro_batch_size={max(1, samples // args.micro)}",
    ]
    shape = SHAPES[job.shape]
    if job.base is not None:
        keys.append(f"actor.model.model_path={job.base}")
        keys += [f"~actor.model.{key}" for key in ("hf_config", "words", "vision_towers")]
    else:
        sizes = shape.llm.replace("heads:", "num_attention_heads:")
        keys.append(f"actor.model.hf_config={{{sizes}}}")
        if shape.tower is not None:
            keys.append(f"actor.model.vision_towers=[{shape.tower}]")
    if shape.tower is not None:
        keys += [f"env.train.image_size={shape.pixels}", "actor.model.precision=bf16"]
    return [*keys, *job.keys]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--parts", nargs="+", choices=("full", "lora", "modes"))
    parser.add_argument("--steps", type=int, default=20, help="GRPO steps of each run (20)")
    parser.add_argument("--envs", type=int, default=64, help="envs (64)")
    parser.add_argument("--workers", type=int, default=8, help="env processes (8)")
    parser.add_argument("--micro", type=int, default=8, help="micro-batches of a rollout (8)")
    parser.add_argument("--tiny", action="store_true", help="small models, on a CPU")
    args = parser.parse_args(arguments)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    rows, failed = [], []
    for part in args.parts or ("full", "lora", "modes"):
        for job in jobs(part, args):
            folder = args.out / job.name.replace(" ", "_").replace(",", "")
            if job.base is not None:
                write_base(job.shape, args, job.base)
            keys = keys_of(job, args)
            command = [sys.executable, "-m", "rlinf.cli", "train", RECIPE, *keys]
            if subprocess.run([*command, f"runner.run_dir={folder}"]).returncode:
                failed.append(job.name)
                continue
            row = {"run": job.name, "shape": job.shape, **measured(folder, predicted(keys))}
            rows.append(row)
            print(json.dumps(row), flush=True)
            picture(folder, args.out / f"{folder.name}.png", job.name)
    print(table(rows), flush=True)
    if failed:
        print(f"FAILED {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def write_base(shape: str, args: argparse.Namespace, folder: Path) -> None:
    """Write a folder of random weights in the public layout, unless it is there."""
    if folder.exists():
        return
    import torch

    from rlinf.cli.env_sizes import env_sizes
    from rlinf.config import build_config, validate_cfg
    from rlinf.models import get_model
    from rlinf.models.embodiment.openvla.folder import save_folder

    cfg = validate_cfg(build_config(RECIPE, keys_of(Job("base", shape, placed(args, 2)), args)))
    spec, _ = env_sizes(cfg)
    with torch.device("cpu" if args.tiny else "cuda"):
        policy = get_model(cfg.actor.model, env_spec=spec)
    save_folder(policy.to("cpu"), folder)
    del policy
    if not args.tiny:
        torch.cuda.empty_cache()


def predicted(keys: Sequence[str]) -> dict[str, Any]:
    """Return what `rlinf check` predicts, by component."""
    from rlinf.cli.check import inspect_config

    return inspect_config(RECIPE, list(keys), memory=True)["memory"] or {}


def measured(folder: Path, prediction: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a run; medians over steps, without the first."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "time/step" in line]

    def median(key: str) -> float:
        return statistics.median(step[key] for step in steps[1:] or steps)

    row: dict[str, Any] = {
        "steps": len(steps),
        "seconds per step": round(median("time/step"), 2),
        "rollout": round(median("time/generate_rollouts"), 2),
        "update": round(median("time/training"), 2),
        "env steps/s": round(median("env/steps_per_second"), 1),
        "samples/s": summary["samples_per_second"],
        "agreement": max(step["train/agreement/logprob_mean"] for step in steps),
    }
    for component, group in COMPONENTS.items():
        device = summary["peak_memory"].get(group, {}).get("device", 0)
        foreseen = prediction.get(component, {}).get("device_bytes", 0)
        row[f"{component}: predicted, used (GiB)"] = (
            f"{foreseen / GIB:.1f}, {device / GIB:.1f}" if device else ""
        )
    return row


def picture(folder: Path, path: Path, title: str) -> None:
    """Draw the last step."""
    from rlinf.cli.timeline.lanes import load_timeline
    from rlinf.cli.timeline.picture import draw

    timeline = load_timeline(folder)
    step = timeline.steps[-1]
    draw(timeline, step.begin, step.end, path, title)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[str(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    sys.exit(main())
