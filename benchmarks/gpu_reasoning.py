"""Speed of language models on one GPU: generation, training, weight updates, whole GRPO steps.

Usage, from the root of the repository on a machine with a GPU:

    python -m benchmarks.gpu_reasoning --out FOLDER
    python -m benchmarks.gpu_reasoning --out FOLDER --parts training weights
    python -m benchmarks.gpu_reasoning --out FOLDER --parts smollm2 --smollm2 WEIGHTS
    python -m benchmarks.gpu_reasoning --out FOLDER --parts searchr1 code_agent --smollm2 WEIGHTS
    python -m benchmarks.gpu_reasoning --out FOLDER --tiny     # on a CPU: does everything work?

Parts, each in a process of its own:

- `generation`: random models in bf16, 256 sequences of up to 512 tokens, beside
  `transformers.generate` and beside the limit that reading weights, keys and values sets.
- `training`: the learner on packed sequences, with several sizes of micro-batches, against what
  matrix products alone reach on this device; and which kernels take the time.
- `weights`: an update of all weights from the actor's process to the engine's.
- `weight_phases`: what such an update consists of, with buckets of several sizes.
- `grpo`: whole steps of 32 prompts x 8 responses x 256 tokens, beside TRL's GRPOTrainer.
- `smollm2`: the recipe `smollm2_grpo`, before and after training.
- `searchr1`, `code_agent`: the agent recipes `searchr1` and `code_agent_smollm2`, before and after
  training, and beside a loop of requests that plays one episode after the other.
- `vllm`: vLLM as an engine: weights by CUDA IPC, log-probabilities, updates in the middle, sleep.
- `vllm_lora`: the same with adapters beside fixed weights.
- `vllm_grpo`: whole GRPO steps with vLLM as the engine.
- `sglang`, `sglang_grpo`: the checks of `vllm` and whole GRPO steps, with SGLang.
- `sglang_url`: whole GRPO steps with a server of SGLang that is given by its URL.
- `engines`: tokens per second of our engine and of vLLM, by context and batch.
- `paged`: our engine with a paged cache beside contiguous rows: the same tokens, speed, memory.
- `paged_grpo`: whole GRPO steps with both, and the same first step.

Those of vLLM and SGLang need these; they, agents, `engines` and the paged ones run when they are
named.

Each row goes to FOLDER/gpu_reasoning.jsonl as soon as it is there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks.gpu_parts.settings import Row, Settings

PARTS = ("generation", "training", "weights", "weight_phases", "grpo")
WHEN_NAMED = (
    "smollm2",
    "searchr1",
    "code_agent",
    "vllm",
    "vllm_lora",
    "vllm_grpo",
    "sglang",
    "sglang_grpo",
    "sglang_url",
    "engines",
    "paged",
    "paged_grpo",
)
ROOT = Path(__file__).resolve().parents[1]
SIZES = ("0.5B", "1.5B", "7B")
FILE = "gpu_reasoning.jsonl"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for results")
    options.add_argument("--parts", nargs="+", choices=PARTS + WHEN_NAMED, help="which")
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.5B", "1.5B"])
    options.add_argument("--trl", default=sys.executable, metavar="PYTHON", help="that has TRL")
    options.add_argument("--smollm2", type=Path, metavar="FOLDER", help="weights of SmolLM2")
    options.add_argument("--steps", type=int, help="training steps of SmolLM2 (the recipe's)")
    options.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="of agent recipes"
    )
    options.add_argument("--compiled", action="store_true", help="with torch.compile, too")
    options.add_argument("--bandwidth", type=float, default=4.8, metavar="TB/S")
    options.add_argument("--limit", type=float, default=420.0, help="seconds for one part (420)")
    options.add_argument("--seconds", type=float, default=300.0, help="for the rows of engines")
    options.add_argument("--tiny", action="store_true", help="a small model on a CPU")
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(given)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    parts = args.parts or [*PARTS, *(["smollm2"] if args.smollm2 else [])]
    if args.here:
        names = {field.name for field in fields(Settings)}
        keys = {name: value for name, value in vars(args).items() if name in names}
        keys |= {"sizes": tuple(args.sizes), "overrides": tuple(args.override)}
        run_part(parts[0], Settings(**keys))
        return 0
    failed = []
    for part in parts:
        begin = time.monotonic()
        code = _in_a_process(part, given, args.limit)
        print(f"{part}: {time.monotonic() - begin:.0f} s, exit code {code}\n", flush=True)
        if code:
            failed.append(part)
    if failed:
        print(f"FAILED {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def _in_a_process(part: str, given: list[str], limit: float) -> int | str:
    """Return a part that fails, or hangs, costs the others nothing, and leaves no memory behind."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "benchmarks.gpu_reasoning", *given, "--here", "--parts", part]
    # A session of its own: a run that it has started ends with it.
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"none: it took more than {limit:g} s (--limit)"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_part(part: str, settings: Settings) -> None:
    """Measure one part; print its rows as they come, and a table of them at the end."""
    measure = importlib.import_module(f"benchmarks.gpu_parts.{part}").measure
    rows: list[Row] = []
    for row in measure(settings):
        rows.append(row)
        line = {"part": part, "time": time.strftime("%H:%M:%S"), **row}
        print(json.dumps(line, ensure_ascii=False), flush=True)
        with (settings.out / FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")
    print(f"\n{table(rows)}\n", flush=True)


def table(rows: Sequence[Row]) -> str:
    """Return the rows in Markdown, with a column for each of their keys."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value).replace("|", "/").replace("\n", " ")
    return f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
