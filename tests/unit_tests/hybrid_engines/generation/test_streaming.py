"""Tokens of a response are shown as they are drawn, and are those of the response."""

from __future__ import annotations

import pytest

from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.generation.hf.streaming import StreamingEngine
from tests.unit_tests.hybrid_engines.generation.tiny import tiny

PROMPT = [3, 4, 5, 6]


@pytest.fixture(scope="module")
def engine() -> StreamingEngine:
    return StreamingEngine(tiny(), max_length=64, max_running=1, device="cpu")


def request(seed: int = 5, limit: int = 20, **changes: object) -> GenerationRequest:
    params = SamplingParams(max_new_tokens=limit, seed=seed, ignore_eos=True)
    return GenerationRequest("mine", PROMPT, params, **changes)


def test_what_is_shown_is_what_an_engine_generates(engine: StreamingEngine) -> None:
    plain = HFEngine(tiny(), max_length=64, max_running=4, device="cpu")
    expected = plain.generate([request()])[0]
    seen: list[int] = []
    result = engine.stream(request(), seen.append)
    assert seen == result.token_ids == expected.token_ids
    assert result.finish_reason == "length"


def test_each_token_is_shown_before_the_next_is_drawn(engine: StreamingEngine) -> None:
    steps: list[float] = []
    before = engine.stats()["new_tokens"]
    engine.stream(request(), lambda token: steps.append(engine.stats()["new_tokens"] - before))
    # The first two come of one step: it reads the prompt and makes one token more.
    assert sorted(steps) == steps and len(set(steps)) >= len(steps) - 1


def test_a_response_that_is_stopped_leaves_the_engine_idle(engine: StreamingEngine) -> None:
    whole: list[int] = []
    engine.stream(request(), whole.append)
    seen: list[int] = []
    result = engine.stream(request(), seen.append, stop=lambda: len(seen) >= 7)
    assert result.finish_reason == "abort"
    assert result.token_ids == seen == whole[: len(seen)] and 7 <= len(seen) < 10
    assert engine.unfinished == 0
    again: list[int] = []
    engine.stream(request(), again.append)
    assert again == whole


def test_only_one_response_at_a_time(engine: StreamingEngine) -> None:
    with pytest.raises(ValueError, match="n is 2"):
        engine.stream(request(n=2), print)
    engine.submit([request()])
    with pytest.raises(ValueError, match="other work"):
        engine.stream(request(), print)
    engine.abort()
