"""Speed of the learner: tokens per second, and the share of what matrix products reach alone."""

from __future__ import annotations

import copy
import gc
import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.contestants.generation_model import SHAPES
from benchmarks.gpu_parts.settings import TINY, Row, Settings, seconds_of, section_of
from rlinf.data.reasoning import Prompt, Sample, SampleGroup

GROUP = 8
BUDGETS = {
    "0.5B": ((False, 16_384), (False, 32_768), (False, 65_536), (True, 65_536)),
    "1.5B": ((False, 16_384), (False, 32_768), (True, 65_536)),
    TINY: ((False, 256), (True, 256)),
}
"""Whether activations are recomputed, and tokens of a micro-batch; by shape."""
SHOWN = 12
"""Kernels that are listed."""
_made: dict[str, Any] = {}
"""Random models by shape: to make one takes longer than to copy it."""


def measure(settings: Settings) -> Iterator[Row]:
    """A row for the peak, one per model and micro-batch, and one per kernel."""
    peak = matrix_peak(settings)
    yield {"what": "matrix product, bf16", "TFLOP/s": round(peak / 1e12, 1)}
    for shape in (TINY,) if settings.tiny else settings.sizes:
        ways = itertools.product((False, True) if settings.compiled else (False,), BUDGETS[shape])
        for compiled, (recompute, budget) in ways:
            what = f"{shape}, {budget:,} tokens{', recomputing' if recompute else ''}"
            what += ", compiled" if compiled else ""
            try:
                yield from _trained(shape, recompute, budget, settings, peak, what, compiled)
            except torch.OutOfMemoryError:
                yield {"what": what, "note": "out of memory"}
            _forget()
        _made.clear()


def matrix_peak(settings: Settings) -> float:
    """FLOP/s of large matrix products of random numbers, the best of three lots."""
    size = 256 if settings.tiny else 8192
    dtype = torch.float32 if settings.tiny else torch.bfloat16
    a, b = (torch.randn(size, size, device=settings.device, dtype=dtype) for _ in range(2))

    def lot() -> None:
        for _ in range(10):
            a @ b

    lot()
    seconds = min(seconds_of(lot, settings.device) for _ in range(3))
    return 10 * 2 * size**3 / seconds


def _trained(
    shape: str,
    recompute: bool,
    budget: int,
    settings: Settings,
    peak: float,
    what: str,
    compiled: bool,
) -> Iterator[Row]:
    tokens = 512 if settings.tiny else 131_072
    learner = make_learner(shape, recompute, budget, tokens, settings, compiled)
    groups = random_groups(tokens, 16 if settings.tiny else 512, SHAPES[shape]["vocab_size"])
    work = flops(shape, groups)
    made = sum(len(s.prompt_ids) + len(s.response_ids) for g in groups for s in g.samples)
    times, preparing = [], []
    for _ in range(3):
        preparing.append(seconds_of(lambda: learner.prepare(groups), settings.device))
        times.append(seconds_of(learner.update, settings.device))
    seconds = min(times[1:])
    row: Row = {
        "what": what,
        "tokens/s": round(made / seconds),
        "% of peak": round(100 * work / seconds / peak, 1),
        "seconds": round(seconds, 3),
        "credit s": round(min(preparing[1:]), 3),
    }
    if settings.device.type == "cuda":
        row["GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    yield row
    if settings.tiny or (budget == 32_768 and not recompute):
        learner.prepare(groups)
        yield from kernels(learner.update, settings, shape)


def make_learner(
    shape: str,
    recompute: bool,
    budget: int,
    tokens: int,
    settings: Settings,
    compiled: bool = False,
) -> Any:
    """Return the learner of a run, alone, on packed sequences."""
    from rlinf.config import validate_cfg
    from rlinf.models import get_model
    from rlinf.workers.actor.learner import LearnerPlace
    from rlinf.workers.actor.reasoning_learner import ReasoningLearner

    length = 64 if settings.tiny else 1024
    cfg = validate_cfg(
        {
            "cluster": {"component_placement": {"actor,rollout,reward": "0"}},
            "runner": {
                "task_type": "reasoning",
                "max_steps": 10,
                "seq_length": length,
                "enable_dynamic_batch_size": True,
                "max_tokens_per_mbs": budget,
            },
            "algorithm": {"adv_type": "grpo", "loss_type": "actor", "group_size": GROUP},
            "data": {
                "max_prompt_length": length // 2,
                "rollout_batch_size": GROUP,
                "train_data_paths": ["none"],
            },
            "rollout": {},
            "actor": {
                "model": section_of(shape) | {"sequence_layout": "packed"},
                "optim": {"lr": 1e-6},
                "compile_model": compiled,
                "fsdp_config": {"gradient_checkpointing": recompute},
                "tokenizer": {"tokenizer_model": "characters"},
            },
            "reward": {"reward_type": "math"},
        }
    )
    if shape not in _made:
        torch.manual_seed(0)
        # On the CPU, as an actor does it.
        _made[shape] = get_model(cfg.actor.model, dtype=torch.float32)
    model = copy.deepcopy(_made[shape])
    return ReasoningLearner(cfg, model, LearnerPlace(settings.device))


def random_groups(tokens: int, mean: int, vocabulary: int) -> list[SampleGroup]:
    """Return the groups of random responses whose lengths differ: about so many tokens in all."""
    chance = random.Random(0)
    prompt_length = mean // 4

    def draw(count: int) -> list[int]:
        return chance.choices(range(3, vocabulary), k=count)

    groups = []
    for index in range(max(1, tokens // mean // GROUP)):
        prompt = Prompt(index, draw(prompt_length), "", None, "random", {})
        samples = []
        for i in range(GROUP):
            length = chance.randint(mean // 2, mean)
            samples.append(
                Sample(
                    prompt_index=index,
                    sample_index=i,
                    prompt_ids=list(prompt.token_ids),
                    response_ids=draw(length),
                    logprobs=[-10.0] * length,
                    versions=[0] * length,
                    finish_reason="stop",
                    reward=float(chance.randint(0, 1)),
                )
            )
        groups.append(SampleGroup(prompt, samples))
    return groups


def flops(shape: str, groups: list[SampleGroup]) -> float:
    """Arithmetic of a training step that does nothing twice: three times that of the forward pass.

    2 per weight and token, 2 n^2 per head dimension and layer for causal attention over n tokens,
    and the last layer for response tokens only.
    """
    keys = SHAPES[shape]
    width, heads = keys["hidden_size"], keys["num_attention_heads"]
    head = keys.get("head_dim", width // heads)
    layer = width * head * (2 * heads + 2 * keys["num_key_value_heads"])
    layer += 3 * width * keys["intermediate_size"]
    forward = 0.0
    for group in groups:
        for sample in group.samples:
            length = len(sample.prompt_ids) + len(sample.response_ids) - 1
            inside = 2 * layer * length + 2 * heads * head * length**2
            forward += keys["num_hidden_layers"] * inside
            forward += 2 * keys["vocab_size"] * width * len(sample.response_ids)
    return 3 * forward


def kernels(action: Any, settings: Settings, shape: str) -> Iterator[Row]:
    """What the device spends its time with, the longest first."""
    on_gpu = settings.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        seconds = seconds_of(action, settings.device)
    spent: list[tuple[float, int, str]] = []
    for event in found.key_averages():
        time = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        spent.append((time / 1e3, event.count, event.key))
    spent.sort(reverse=True)
    total = sum(time for time, _, _ in spent)
    yield {"what": f"{shape}: device busy", "% of time": round(total / seconds / 10, 1)}
    for time, count, name in spent[:SHOWN]:
        yield {
            "what": f"{shape}: {name[:90]}",
            "% of time": round(100 * time / total, 1),
            "ms": round(time, 2),
            "calls": count,
        }


def _forget() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
