"""How answers of SGLang read."""

import pytest

from rlinf.hybrid_engines.generation.remote.http import EngineServerError
from rlinf.hybrid_engines.generation.remote.protocols import sglang_made

ENTRIES = [[-0.5, 7, None], [-1.5, 8, None], [-2.5, 9, None]]


def meta(reason, entries, **further):
    return {
        "finish_reason": reason,
        "output_token_logprobs": entries,
        "completion_tokens": len(entries),
        **further,
    }


def test_a_response_that_has_ended_is_whole():
    made = sglang_made("a", meta({"type": "length", "length": 3}, ENTRIES))
    assert (made.tokens, made.logprobs) == ([7, 8, 9], [-0.5, -1.5, -2.5])
    assert (made.key, made.finished) == ("a", "length")


def test_the_token_that_sglang_draws_after_an_abort_is_left_out():
    """It may be the end of the response, and SGLang would not say so."""
    made = sglang_made("a", meta({"type": "abort", "message": "Aborted"}, ENTRIES))
    assert (made.tokens, made.logprobs, made.finished) == ([7, 8], [-0.5, -1.5], "abort")


@pytest.mark.parametrize("entries", [[], ENTRIES])
def test_what_is_aborted_while_it_waits_keeps_what_it_has(entries):
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    made = sglang_made("a", meta(reason, entries))
    assert len(made.tokens) == len(entries) and made.finished == "abort"


def test_tokens_that_are_missing_are_an_error():
    lost = meta({"type": "abort", "message": "Aborted"}, [], completion_tokens=5)
    with pytest.raises(EngineServerError, match="has made 5 tokens of a request and gave 0"):
        sglang_made("a", lost)


def test_an_unknown_end_is_an_error():
    with pytest.raises(EngineServerError, match="ended a request with {'type': 'tired'}"):
        sglang_made("a", meta({"type": "tired"}, ENTRIES))
