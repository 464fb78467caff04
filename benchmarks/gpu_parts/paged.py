"""A paged cache beside contiguous rows: the same tokens, their speed, and the memory of both.

Prompts are random, and new in every round, unless a row says otherwise. Rates count new tokens,
over the whole time, the reading of prompts included; the better of two rounds after one that is not
counted. The part fails if the two ways to keep keys and values give different tokens or
log-probabilities where nothing is read again.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_parts.settings import TINY, Row, Settings, random_model, seconds_of
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult, SamplingParams
from rlinf.hybrid_engines.generation.hf.engine import HFEngine

MEMORY = 0.8
ROUNDING = 1e-4
"""How far log-probabilities are apart where kernels add in another order: on a CPU."""


@dataclass(frozen=True)
class Case:
    """What is asked for.

    Attributes:
        batch: Responses.
        prompt: Tokens of each prompt.
        new: Tokens of each response.
        group: Responses per prompt.
        longest: Most tokens that a sequence may have.
    """

    batch: int
    prompt: int
    new: int
    group: int
    longest: int

    def requests(
        self, round_: int, vocabulary: int, greedy: bool = False, ragged: bool = False
    ) -> list[GenerationRequest]:
        """Make the requests of a round; lengths of ragged ones differ."""
        generator = torch.Generator().manual_seed(1000 * round_ + self.batch)
        requests = []
        for index in range(self.batch // self.group):
            prompt, new = self.prompt, self.new
            if ragged:
                prompt -= index % max(1, self.prompt // 2)
                new -= (7 * index) % max(1, self.new // 2)
            ids = torch.randint(3, vocabulary, (prompt,), generator=generator).tolist()
            params = SamplingParams(
                max_new_tokens=new,
                temperature=0.0 if greedy else 1.0,
                seed=index,
                ignore_eos=True,
            )
            requests.append(GenerationRequest((round_, index), ids, params, self.group))
        return requests


def measure(settings: Settings) -> Iterator[Row]:
    """Rows of equality first, then speed and memory."""
    tiny = settings.tiny
    shape = TINY if tiny else settings.sizes[0]
    batch, prompt, new, group, long = (8, 70, 12, 4, 256) if tiny else (256, 128, 384, 8, 4096)
    model = random_model(shape, settings.device, length=2 * long)
    plain = Case(batch, prompt, new, 1, prompt + new)
    grouped = Case(batch, prompt, new, group, prompt + new)
    roomy = Case(batch, prompt, new, group, long)
    yield {"case": "flash kernels of this torch take a table", "equal": str(_flash_takes_table())}
    differ: list[str] = []
    for name, case, greedy in (
        ("greedy, 1 per prompt", plain, True),
        (f"sampled, {group} per prompt", grouped, False),
    ):
        row = _equality(model, name, case, greedy, settings)
        yield row
        allowed = 0.0 if row["path"] == "triton" else ROUNDING
        if row["equal"] != f"{batch} of {batch}" or row["log-probabilities apart"] > allowed:
            differ.append(name)
    expected: list[GenerationResult] = []
    for name, case in (
        (f"1 per prompt, up to {plain.longest}", plain),
        (f"{group} per prompt, up to {grouped.longest}", grouped),
        (f"{group} per prompt, up to {roomy.longest}", roomy),
    ):
        for paged in (False, True):
            row, results = _speed(model, case, settings, paged)
            yield {"case": name} | row
            if case == grouped and not paged:
                expected = results
    row, _ = _speed(model, grouped, settings, True, repeat=True)
    yield {"case": f"{group} per prompt, prompts read before"} | row
    yield _crowded(model, grouped, expected, settings)
    yield from _same_memory(model, roomy, settings)
    if differ:
        raise RuntimeError(f"paged and contiguous results differ: {', '.join(differ)}")


def _flash_takes_table() -> bool:
    """Return whether torch's own kernels could use the table of blocks."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    names = set(inspect.signature(varlen_attn).parameters)
    return bool(names & {"block_table", "page_table"})


def _engine(model: Any, case: Case, settings: Settings, **keys: Any) -> HFEngine:
    return HFEngine(
        model,
        **{
            "max_length": case.longest,
            "max_running": case.batch,
            "device": settings.device,
            "eos_token_ids": (),
            "gpu_memory_utilization": MEMORY,
            **keys,
        },
    )


def _close(engine: HFEngine) -> None:
    engine.sleep()
    engine.close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _vocabulary(model: Any) -> int:
    return min(model.config.vocab_size, 150_000)


def _by_sample(results: Sequence[GenerationResult]) -> dict[Any, GenerationResult]:
    return {(result.request_id, result.sample_index): result for result in results}


def _compared(ours: Sequence[GenerationResult], others: Sequence[GenerationResult]) -> Row:
    """Compare responses, and log-probabilities as far as tokens are the same."""
    mine, reference = _by_sample(ours), _by_sample(others)
    assert mine.keys() == reference.keys(), "not all responses are there"
    equal, apart, tokens = 0, 0.0, 0
    for key, result in mine.items():
        other = reference[key]
        assert len(result.token_ids) == len(other.token_ids), f"{key} has another length"
        equal += result.token_ids == other.token_ids
        for a, b, p, q in zip(
            result.token_ids, other.token_ids, result.logprobs, other.logprobs, strict=True
        ):
            if a != b:
                break
            apart, tokens = max(apart, abs(p - q)), tokens + 1
    return {
        "equal": f"{equal} of {len(mine)}",
        "tokens compared": tokens,
        "log-probabilities apart": apart,
    }


def _equality(model: Any, name: str, case: Case, greedy: bool, settings: Settings) -> Row:
    found = []
    paths = []
    for paged in (False, True):
        engine = _engine(model, case, settings, paged=paged)
        found.append(engine.generate(case.requests(0, _vocabulary(model), greedy, ragged=True)))
        paths.append(engine.path)
        _close(engine)
    return {"case": name, "cache": "both", "path": paths[1]} | _compared(found[1], found[0])


def _speed(
    model: Any,
    case: Case,
    settings: Settings,
    paged: bool,
    repeat: bool = False,
    **keys: Any,
) -> tuple[Row, list[GenerationResult]]:
    """Return a row, and the responses of the first round.

    Args:
        model: It.
        case: What is asked for.
        settings: Of the part.
        paged: Which cache.
        repeat: Ask for the same in every round.
        **keys: Of the engine.
    """
    engine = _engine(model, case, settings, paged=paged, **keys)
    results: list[list[GenerationResult]] = []
    times = []
    for round_ in range(3):
        requests = case.requests(0 if repeat else round_, _vocabulary(model))
        times.append(
            seconds_of(lambda r=requests: results.append(engine.generate(r)), settings.device)
        )
    row = _row(engine, paged, case, min(times[1:]))
    _close(engine)
    return row, results[0]


def _row(engine: HFEngine, paged: bool, case: Case, seconds: float) -> Row:
    stats = engine.stats()
    return {
        "cache": "paged" if paged else "rows",
        "path": engine.path,
        "tokens/s": round(case.batch * case.new / seconds),
        "cache GiB": round(stats["cache_bytes"] / 2**30, 4),
        "slots": int(stats["slots"]),
        "graphs": int(stats["graphs"]),
        "reused": int(stats["reused_tokens"]),
        "preempted": int(stats["preempted"]),
    }


def _same_memory(model: Any, case: Case, settings: Settings) -> Iterator[Row]:
    """Give both the memory of a quarter of the sequences at their full length."""
    rows = case.batch // 4
    name = f"{case.batch} responses in the memory of {rows} of {case.longest}"
    # Rows have a token more than the longest sequence, rounded up.
    tokens = rows * (case.longest + 16)
    for paged, keys in ((False, {"max_running": rows}), (True, {"max_cache_tokens": tokens})):
        row, _ = _speed(model, case, settings, paged, **keys)
        yield {"case": name} | row


def _crowded(
    model: Any, case: Case, expected: Sequence[GenerationResult], settings: Settings
) -> Row:
    """Let blocks run out, so that responses wait and are read again."""
    tokens = max(case.longest + 64, case.batch * case.longest // 3)
    tokens += -tokens % 64
    engine = _engine(model, case, settings, paged=True, max_cache_tokens=tokens)
    engine.generate(case.requests(1, _vocabulary(model)))
    found: list[GenerationResult] = []
    requests = case.requests(0, _vocabulary(model))
    seconds = seconds_of(lambda: found.extend(engine.generate(requests)), settings.device)
    row = _row(engine, True, case, seconds)
    _close(engine)
    name = f"blocks for {tokens} of {case.batch * case.longest} tokens"
    return {"case": name} | row | _compared(found, expected)
