"""Characters as tokens, in a folder like any other; and folders that are not there."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from rlinf.data.tokenizer import (  # noqa: E402
    PRINTABLE,
    character_tokenizer,
    load_tokenizer,
    tokenizer_of_run,
)

TOKENIZER = character_tokenizer()


# Hypothesis also draws what stands in the sources, such as the names of special tokens.
@given(st.text(alphabet=PRINTABLE, max_size=40).filter(lambda t: not re.search("<(eos|pad)>", t)))
def test_a_character_is_a_token(text):
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text) and all(i >= 2 for i in ids)
    assert TOKENIZER.decode(ids) == text
    ended = [*ids, TOKENIZER.eos_token_id]
    assert TOKENIZER.decode(ended, skip_special_tokens=True) == text


def test_a_saved_folder_is_an_ordinary_one(tmp_path):
    from transformers import AutoTokenizer

    character_tokenizer("01+=").save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))):
        assert loaded.encode("1+0=") == [3, 4, 2, 5]
        assert loaded.decode([3, 4, 2, 5]) == "1+0="
        assert (loaded.eos_token_id, loaded.pad_token_id, len(loaded)) == (0, 1, 6)
        with pytest.raises(Exception, match="UNK"):
            loaded.encode("x")


def test_names_lead_to_tokenizers(tmp_path):
    assert len(load_tokenizer("characters")) == len(PRINTABLE) + 2
    assert len(load_tokenizer("characters:abc")) == 5
    section = SimpleNamespace(tokenizer_model=None, trust_remote_code=False)
    assert len(load_tokenizer(section, "characters:ab")) == 4
    run = SimpleNamespace(
        actor=SimpleNamespace(
            tokenizer=SimpleNamespace(tokenizer_model="characters:a", trust_remote_code=False),
            model=SimpleNamespace(model_path="/not/used"),
        )
    )
    assert len(tokenizer_of_run(run)) == 3
    with pytest.raises(ValueError, match="there is no tokenizer: set tokenizer.tokenizer_model"):
        load_tokenizer(section)
    with pytest.raises(ValueError, match=r"nowhere' is not a folder"):
        load_tokenizer(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="each of its characters once"):
        load_tokenizer("characters:aa")


def test_words_are_the_longest_that_fit_and_spaces_are_none():
    words = load_tokenizer("words:1 12 plus <answer> </answer>")
    ids = words.encode("12 plus 1<answer>121</answer>")
    assert words.convert_ids_to_tokens(ids) == [
        *("12", "plus", "1"),
        *("<answer>", "12", "1", "</answer>"),
    ]
    assert words.decode(ids) == "12plus1<answer>121</answer>"
    assert words.encode("1") == [2] and words.eos_token_id == 0 and len(words) == 7
    with pytest.raises(Exception, match="Missing .UNK."):
        words.encode("minus")


def test_other_text_is_unknown_if_there_is_a_word_for_that(tmp_path):
    words = load_tokenizer("words:<unk> 1 error:")
    words.save_pretrained(tmp_path)
    for made in (words, load_tokenizer(str(tmp_path))):
        assert made.encode("error: cannot read it 1") == [4, 2, 2, 2, 3]


def test_spaced_words_have_spaces_again_when_they_are_decoded(tmp_path):
    words = load_tokenizer("spaced_words:<unk> ada dahl <answer> </answer>")
    ids = words.encode("<answer>ada   dahl</answer>")
    assert len(ids) == 4
    words.save_pretrained(tmp_path)
    for made in (words, load_tokenizer(str(tmp_path))):
        assert made.decode(ids) == "<answer> ada dahl </answer>"
        assert made.decode([*ids, 0], skip_special_tokens=True) == "<answer> ada dahl </answer>"


@pytest.mark.parametrize("name", ["words:", "words:a b a", "spaced_words:"])
def test_words_are_some_and_each_is_there_once(name):
    with pytest.raises(ValueError, match="each of them once"):
        load_tokenizer(name)


def test_a_chat_template_of_the_config_takes_the_place_of_its_own(tmp_path):
    own = character_tokenizer()
    own.chat_template = "of the folder"
    own.save_pretrained(tmp_path)

    def rendered(template):
        section = SimpleNamespace(
            tokenizer_model=str(tmp_path), trust_remote_code=False, chat_template=template
        )
        messages = [{"role": "user", "content": "hi"}]
        return load_tokenizer(section).apply_chat_template(messages, tokenize=False)

    assert rendered(None) == "of the folder"
    assert (
        rendered("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}") == "hi<eos>"
    )
    # A tag of transformers, around what a model is trained on.
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert rendered(marked) == "hi"
    with pytest.raises(
        ValueError, match="chat_template cannot be read as a Jinja template: line 2"
    ):
        rendered("{{ eos_token }}\n{% for %}")
