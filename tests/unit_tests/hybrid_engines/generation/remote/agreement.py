"""What tests of servers ask for, and what has to come."""

from __future__ import annotations

import numpy as np

from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
from tests.unit_tests.hybrid_engines.generation.tiny import logprobs


def requests(count=3, n=2, max_new_tokens=12, **params):
    """Requests of some prompts, with seeds."""
    settings = {"max_new_tokens": max_new_tokens, "ignore_eos": True, **params}
    return [
        GenerationRequest(i, [5 + i, 7, 9 + i], SamplingParams(seed=50 + i, **settings), n)
        for i in range(count)
    ]


def agree(results, asked, model, temperature=1.0):
    """Requires that log-probabilities are those of a model."""
    assert results
    for result in results:
        exact = logprobs(model, asked[result.request_id].prompt_ids, result.token_ids, temperature)
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)
