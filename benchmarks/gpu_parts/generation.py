"""Tokens per second of generation, beside `transformers.generate` and the limit of the memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_parts.settings import TINY, Row, Settings, random_model, seconds_of


def measure(settings: Settings) -> Iterator[Row]:
    """A row per model and way to generate."""
    shapes = (TINY,) if settings.tiny else settings.sizes
    batch, prompt, new, few = (4, 6, 8, 4) if settings.tiny else (256, 128, 384, 48)
    for shape in shapes:
        model = random_model(shape, settings.device)
        shown = min(model.config.vocab_size, 150_000)
        prompts = torch.randint(3, shown, (batch, prompt), device=settings.device)
        speed = batch * few / _generate(model, prompts, few, settings)
        limit = _limit(model, batch, prompt + new / 2, settings.bandwidth)
        yield _row(shape, "transformers.generate", "generate", speed, speed, limit)
        for compiled in (False, True) if settings.compiled else (False,):
            name = "ours, compiled" if compiled else "ours"
            path, ours = _ours(model, prompts.tolist(), new, compiled, settings)
            yield _row(shape, name, path, ours, speed, limit)
        del model
        gc.collect()
        if settings.device.type == "cuda":
            torch.cuda.empty_cache()


def _row(shape: str, who: str, path: str, speed: float, other: float, limit: float) -> Row:
    return {
        "model": shape,
        "contestant": who,
        "path": path,
        "tokens/s": round(speed),
        "x generate": round(speed / other, 2),
        "% of bandwidth": round(100 * speed / limit, 1),
    }


def _limit(model: Any, batch: int, context: float, bandwidth: float) -> float:
    """Tokens per second if a step took as long as reading weights, keys and values once."""
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = next(model.parameters()).element_size()
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head * width
    weights = sum(p.numel() for p in model.parameters()) * width
    return batch * bandwidth * 1e12 / (weights + batch * context * token)


def _generate(model: Any, prompts: torch.Tensor, tokens: int, settings: Settings) -> float:
    def generate(count: int) -> None:
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=count,
            min_new_tokens=count,
            eos_token_id=1,
            pad_token_id=0,
        )

    with torch.inference_mode():
        generate(2)
        return seconds_of(lambda: generate(tokens), settings.device)


def _ours(
    model: Any, prompts: list[list[int]], tokens: int, compiled: bool, settings: Settings
) -> tuple[str, float]:
    """Return the path of the engine, and the better of two rounds after one that is not counted."""
    from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
    from rlinf.hybrid_engines.generation.hf.engine import HFEngine

    engine = HFEngine(
        model,
        max_length=len(prompts[0]) + tokens,
        max_running=len(prompts),
        device=settings.device,
        eos_token_ids=(),
        compiled=compiled,
        gpu_memory_utilization=0.8,
    )
    times = []
    for round_ in range(3):
        requests = [
            GenerationRequest(
                (round_, i), ids, SamplingParams(max_new_tokens=tokens, seed=i, ignore_eos=True)
            )
            for i, ids in enumerate(prompts)
        ]
        times.append(seconds_of(lambda r=requests: engine.generate(r), settings.device))
    path = engine.path
    engine.close()
    return path, len(prompts) * tokens / min(times[1:])
