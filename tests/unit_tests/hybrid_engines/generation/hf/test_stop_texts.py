"""Responses end at texts of several tokens, exactly where the text is complete."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.generation.hf.stop_texts import StopTexts
from tests.unit_tests.hybrid_engines.generation.test_engine import LENGTH, requests
from tests.unit_tests.hybrid_engines.generation.tiny import VOCABULARY, tiny

ALPHABET = "".join(map(chr, range(48, 48 + VOCABULARY - 2)))


@pytest.fixture
def folder(tmp_path):
    character_tokenizer(ALPHABET).save_pretrained(tmp_path)
    return str(tmp_path)


def engine(model, folder=None, **keys):
    settings = {"max_length": LENGTH, "max_running": 8, "tokenizer_path": folder}
    return HFEngine(model, **settings | keys)


@pytest.mark.parametrize("running", [1, 8])
def test_a_response_is_cut_behind_the_first_text(folder, running):
    model, tokenizer = tiny(), character_tokenizer(ALPHABET)
    free = engine(model).generate(requests(6, n=3, max_new_tokens=60, ignore_eos=True))
    written = [tokenizer.decode(each.token_ids) for each in free]
    # Texts of three and two characters that are in some responses, and of one that is in none.
    stops = (written[0][10:13], written[4][20:22], "\u00e9")
    asked = requests(6, n=3, max_new_tokens=60, ignore_eos=True, stop=stops)
    made = engine(model, folder, max_running=running)
    assert made.takes_stop_texts
    ended = made.generate(asked)
    reasons = set()
    for one, whole in zip(ended, free, strict=True):
        begun = [tokenizer.decode(whole.token_ids[:count]) for count in range(61)]
        places = [n for n, text in enumerate(begun) if any(stop in text for stop in stops)]
        expected = min(places, default=60)
        assert one.token_ids == whole.token_ids[:expected]
        assert one.logprobs == pytest.approx(whole.logprobs[:expected], abs=1e-4)
        assert one.finish_reason == ("stop" if places else "length")
        reasons.add(one.finish_reason)
    assert reasons == {"stop", "length"}


def test_a_text_may_begin_before_a_weight_update(folder):
    model, tokenizer = tiny(), character_tokenizer(ALPHABET)
    (free,) = engine(model).generate(requests(1, max_new_tokens=40, ignore_eos=True))
    stop = tokenizer.decode(free.token_ids[18:24])
    begun = [tokenizer.decode(free.token_ids[:count]) for count in range(41)]
    end = next(count for count, text in enumerate(begun) if stop in text)
    made = engine(model, folder)
    made.submit(requests(1, max_new_tokens=40, ignore_eos=True, stop=(stop,)))
    results = []
    while not results:
        # Weights that are the same: the response is read anew, with what it has.
        made.weights_changed(made.version + 1, recompute=True)
        results = made.step()
    assert results[0].token_ids == free.token_ids[:end] and results[0].finish_reason == "stop"
    assert len(set(results[0].versions)) > 6


def test_without_a_tokenizer_it_says_so():
    with pytest.raises(ValueError, match="no tokenizer to find them with"):
        engine(tiny()).generate(requests(1, stop=("ab",)))


def test_only_tokens_that_may_complete_a_text_are_decoded(folder):
    texts = StopTexts.of_folder(folder, VOCABULARY + 10)
    tokens = np.arange(VOCABULARY + 10)
    assert not texts.completes(tokens).any()
    texts.know(["AB", ""])
    tokenizer = character_tokenizer(ALPHABET)
    (b,) = tokenizer.encode("B")
    assert np.nonzero(texts.completes(tokens))[0].tolist() == [b]
    assert texts.ends(["AB"], tokenizer.encode("CAB")) and not texts.ends(["AB"], [b])
    texts.know(["D"])
    assert texts.completes(tokens).sum() == 2
