"""Memory of each rank while a model is built, and trained, over several CPU ranks.

Usage, from the root of the repository, on a machine with 24 GiB:

    python -m benchmarks.model_memory
    python -m benchmarks.model_memory --cases 0.5B --ranks 2

A folder of random weights in bf16 is written once for each shape. Ranks then build the model from
it as the actor does, in float32, and keep their shards. `weights` stops there. `optimiser` goes on
to a training step on one short sequence, after which gradients and both averages of AdamW have been
there. The peak is the greatest resident memory of the process, files that it has mapped included,
above what it had before the model, when a tiny one had been built and trained in the same way.

The limit is 1.2 times what a rank keeps, and one layer: the largest module whose weights FSDP
gathers at a time. Allocators of ranks are told to give memory that has been freed back to the
system: glibc otherwise keeps blocks of up to 32 MiB for later, and mimalloc, which torch has on
aarch64, waits for a moment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.contestants.generation_model import SHAPES as GENERATION_SHAPES
from benchmarks.harness import describe_machine

FACTOR = 1.2
"""Most memory at the peak, as a multiple of what is kept."""
ALLOCATORS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MIMALLOC_PURGE_DELAY": "0"}
"""Variables that let allocators return what is freed."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a language model, as transformers names them."""

    kind: str
    sizes: dict[str, Any]


def shape_of(sizes: dict[str, Any]) -> Shape:
    """Return a model that engines are compared with."""
    return Shape(sizes["family"].lower(), {k: v for k, v in sizes.items() if k != "family"})


SHAPES = {
    "tiny": Shape(
        "qwen2",
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "small": Shape(
        "qwen3",
        {
            "vocab_size": 8000,
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 12,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
    ),
    **{name: shape_of(GENERATION_SHAPES[name]) for name in ("0.5B", "1.5B")},
}
CASES = {"1.5B": False, "0.5B": True}
"""What is measured, and whether with its optimiser."""


@dataclass(frozen=True)
class Usage:
    """Memory of one rank, in bytes.

    Attributes:
        kept: weights; with an optimiser, gradients and its averages as well.
        layer: the largest module that FSDP gathers at a time, in float32.
        built: greatest memory until the model was there.
        peak: greatest memory of all.
        read: what it has read from files.
    """

    kept: int
    layer: int
    built: int
    peak: int
    read: int

    @property
    def limit(self) -> float:
        """Most that the peak may be."""
        return FACTOR * self.kept + self.layer


def write_folder(shape: Shape, folder: Path) -> None:
    """Write a model folder of Hugging Face layout with random weights in bf16, layer by layer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(shape.kind, **shape.sizes)
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    groups: dict[str, dict[str, torch.Size]] = {}
    for name, parameter in model.named_parameters():
        group = ".".join(name.split(".")[:3])
        groups.setdefault(group, {})[name] = parameter.shape
    places: dict[str, str] = {}
    torch.manual_seed(0)
    for number, tensors in enumerate(groups.values()):
        file = f"model-{number:05}.safetensors"
        values = {n: torch.randn(size).mul_(0.02).bfloat16() for n, size in tensors.items()}
        save_file(values, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(values, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def measure(folder: Path, ranks: int, trains: bool) -> list[Usage]:
    """Return the memory of each of some ranks that share the model of a folder.

    Args:
        folder: of `write_folder`.
        ranks: how many.
        trains: whether to make an optimiser step.
    """
    with tempfile.TemporaryDirectory() as tiny, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        write_folder(SHAPES["tiny"], Path(tiny))
        context = get_context("spawn")
        results = context.Queue()
        arguments = (ranks, port, Path(tiny), folder, trains, results)
        processes = [context.Process(target=_rank, args=(r, *arguments)) for r in range(ranks)]
        with _memory_goes_back():
            for process in processes:
                process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError("a rank failed; its error is above")
        found = dict(results.get() for _ in processes)
    return [found[rank] for rank in range(ranks)]


@contextlib.contextmanager
def _memory_goes_back() -> Iterator[None]:
    """Let processes that are started within this give freed memory back to the system."""
    before = {name: os.environ.get(name) for name in ALLOCATORS}
    os.environ.update(ALLOCATORS)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _rank(
    rank: int, ranks: int, port: int, tiny: Path, folder: Path, trains: bool, results: Any
) -> None:
    """Measure one rank."""
    import torch

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    _engine(tiny, ranks, trains=True)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    results.put((rank, _engine(folder, ranks, trains, before)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _engine(folder: Path, ranks: int, trains: bool, before: int = 0) -> Usage:
    """Build a model on this rank, and train it for a step."""
    import torch

    from rlinf.config import validate_cfg
    from rlinf.hybrid_engines.fsdp.engine import TrainEngine
    from rlinf.hybrid_engines.fsdp.memory import TrainingBytes
    from rlinf.models import get_model
    from rlinf.models.causal_lm.layout import Sequences
    from rlinf.models.deferred import deferred_of

    cfg = validate_cfg(_config(folder))
    model = get_model(cfg.actor.model, dtype=torch.float32, deferred=True)
    size = TrainingBytes.of(model, ranks)
    layer = _largest_layer(model)
    files = deferred_of(model).sources()
    engine = TrainEngine(model, cfg.actor, torch.device("cpu"), ranks, total_steps=1)
    built = _resident("VmHWM") - before
    kept = size.parameters + size.buffers
    if trains:
        tokens = Sequences(torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([2]), torch.tensor([4]))
        engine.backward(engine.forward(sequences=tokens)["logprobs"].sum(), last=True)
        engine.step()
        kept += size.gradients + size.optimizer
    peak = _resident("VmHWM") - before
    return Usage(kept, layer, built, peak, sum(file.bytes_read for file in files))


def _largest_layer(model: Any) -> int:
    """Bytes of the largest module that FSDP gathers at a time: a layer, or what is around them."""
    names = set(model._no_split_modules)
    layers = [module for module in model.modules() if type(module).__name__ in names]
    sizes = [sum(p.nbytes for p in module.parameters()) for module in layers]
    return max(*sizes, sum(p.nbytes for p in model.parameters()) - sum(sizes))


def _config(folder: Path) -> dict[str, Any]:
    """Return a reasoning config with the model of a folder."""
    return {
        "cluster": {"component_placement": {"actor,rollout,reward": "0"}},
        "runner": {"task_type": "reasoning", "max_steps": 1, "seq_length": 32},
        "algorithm": {"adv_type": "grpo", "loss_type": "actor", "group_size": 2},
        "data": {"max_prompt_length": 8, "rollout_batch_size": 2, "train_data_paths": ["none"]},
        "rollout": {},
        "actor": {"model": {"model_type": "hf_causal_lm", "model_path": str(folder)}},
        "reward": {"reward_type": "math"},
    }


def _resident(key: str) -> int:
    """Bytes that this process has in memory now (`VmRSS`), or had at most (`VmHWM`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}: this needs Linux")


def table(rows: Sequence[tuple[str, int, bool, Sequence[Usage]]]) -> str:
    """Return the results as a table of Markdown, of each case the rank with the highest peak."""
    lines = [
        "| model | ranks | what | kept (MiB) | layer (MiB) | read (MiB) | building (MiB) "
        "| peak (MiB) | limit (MiB) | |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, ranks, trains, usages in rows:
        worst = max(usages, key=lambda usage: usage.peak - usage.limit)
        facts = worst.kept, worst.layer, worst.read, worst.built, worst.peak, worst.limit
        numbers = " | ".join(f"{fact / 2**20:,.0f}" for fact in facts)
        what = "weights and optimiser" if trains else "weights"
        verdict = "met" if worst.peak <= worst.limit else "**missed**"
        lines.append(f"| {name} | {ranks} | {what} | {numbers} | {verdict} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    options = parser.parse_args(arguments)
    rows = []
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(SHAPES[name], Path(folder))
            for ranks in options.ranks:
                usages = measure(Path(folder), ranks, CASES[name])
                rows.append((name, ranks, CASES[name], usages))
    print(describe_machine())
    print(table(rows))


if __name__ == "__main__":
    main()
