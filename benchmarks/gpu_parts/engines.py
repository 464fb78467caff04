"""Tokens per second of our engine and of vLLM by context and batch, log-probabilities on.

Prompts are random, and new in every round. A batch of 32 or 256 has 8 responses to each prompt,
as a GRPO step has. Rates count new tokens, over the whole time, the reading of prompts included.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_parts.settings import TINY, Row, Settings, config_of, random_model
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationEngine,
    GenerationRequest,
    SamplingParams,
    build_engine,
)

GROUP = 8
MEMORY = 0.85
WARM_UP = 24
"""New tokens of the round that is not counted."""


@dataclass(frozen=True)
class Cell:
    """What is measured: prompts of `prompt` tokens, `new` tokens to each response."""

    prompt: int
    new: int
    batch: int

    @property
    def context(self) -> int:
        """Tokens of a whole sequence."""
        return self.prompt + self.new

    def requests(self, round_: int, new: int, vocabulary: int) -> list[GenerationRequest]:
        """Make the requests of a round."""
        samples = GROUP if self.batch >= GROUP else 1
        generator = torch.Generator().manual_seed(1000 * round_ + self.batch + self.prompt)
        shape = (self.batch // samples, self.prompt)
        prompts = torch.randint(3, vocabulary, shape, generator=generator).tolist()
        return [
            GenerationRequest(
                i, ids, SamplingParams(max_new_tokens=new, seed=i, ignore_eos=True), samples
            )
            for i, ids in enumerate(prompts)
        ]


def cells(tiny: bool) -> list[Cell]:
    """Return all cells, contexts one after the other."""
    shapes = [(6, 8), (16, 8)] if tiny else [(128, 384), (3968, 128), (16256, 128)]
    batches = (1, 16) if tiny else (1, 32, 256)
    return [Cell(prompt, new, batch) for prompt, new in shapes for batch in batches]


def measure(settings: Settings) -> Iterator[Row]:
    """A row per shape, engine and cell."""
    end = time.monotonic() + settings.seconds
    for shape in (TINY,) if settings.tiny else settings.sizes:
        for name, rows in (("vllm", _vllm), ("ours", _ours)):
            begin = time.monotonic()
            try:
                for row in rows(shape, settings, end):
                    yield {"model": shape, "engine": name, **row}
            except Exception as error:
                yield {"model": shape, "engine": name, "note": f"failed: {error!r}"[:300]}
            yield {"model": shape, "engine": name, "note": f"{time.monotonic() - begin:.0f} s"}
            gc.collect()
            if settings.device.type == "cuda":
                torch.cuda.empty_cache()


def _vllm(shape: str, settings: Settings, end: float) -> Iterator[Row]:
    """One engine for all cells, as vLLM needs no other; weights are random ones of vLLM's own."""
    todo = cells(settings.tiny)
    longest = max(cell.context for cell in todo)
    with tempfile.TemporaryDirectory() as folder:
        config_of(shape, 2 * longest).save_pretrained(folder)
        begin = time.monotonic()
        engine = build_engine(
            "vllm",
            EngineSettings(
                max_length=longest,
                model_path=folder,
                precision="fp32" if settings.tiny else "bf16",
                max_running=max(cell.batch for cell in todo),
                gpu_memory_utilization=0.1 if settings.tiny else MEMORY,
                options={"load_format": "dummy"},
            ),
        )
        yield {"note": f"started in {time.monotonic() - begin:.0f} s"}
        try:
            yield from _rows(todo, end, lambda cell: engine)
        finally:
            engine.close()


def _ours(shape: str, settings: Settings, end: float) -> Iterator[Row]:
    """An engine for each cell."""
    from rlinf.hybrid_engines.generation.hf.engine import HFEngine

    todo = cells(settings.tiny)
    model = random_model(shape, settings.device, length=2 * max(cell.context for cell in todo))

    def build(cell: Cell) -> GenerationEngine:
        return HFEngine(
            model,
            max_length=cell.context,
            max_running=cell.batch,
            device=settings.device,
            eos_token_ids=(),
            gpu_memory_utilization=MEMORY,
        )

    yield from _rows(todo, end, build, closes=True)


def _rows(
    todo: list[Cell], end: float, build: Callable[[Cell], GenerationEngine], closes: bool = False
) -> Iterator[Row]:
    for cell in todo:
        row: Row = {"context": cell.context, "batch": cell.batch}
        if time.monotonic() > end:
            yield row | {"note": "no time left (--seconds)"}
            continue
        engine = None
        try:
            engine = build(cell)
            yield row | _cell(engine, cell)
        except Exception as error:
            yield row | {"note": f"failed: {error!r}"[:300]}
            if engine is not None and engine.unfinished:
                engine.abort()
        finally:
            if closes and engine is not None:
                engine.close()
            del engine
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _cell(engine: GenerationEngine, cell: Cell) -> Row:
    vocabulary = min(engine.vocab_size, 150_000)
    engine.generate(cell.requests(0, min(cell.new, WARM_UP), vocabulary))
    asked = cell.requests(1, cell.new, vocabulary)
    begin = time.perf_counter()
    results = engine.generate(asked)
    seconds = time.perf_counter() - begin
    made = sum(len(result.token_ids) for result in results)
    assert made == cell.batch * cell.new, f"{made} tokens instead of {cell.batch * cell.new}"
    logprobs = [value for result in results for value in result.logprobs]
    stats: dict[str, Any] = engine.stats()
    return {
        "tokens/s": round(made / seconds),
        "seconds": round(seconds, 2),
        "mean log-probability": round(sum(logprobs) / len(logprobs), 3),
        "note": f"{stats['slots']:.0f} at a time" if stats.get("slots", 1e9) < cell.batch else "",
    }
