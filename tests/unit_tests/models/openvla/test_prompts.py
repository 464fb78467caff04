"""Instructions as token ids."""

import pytest

from rlinf.models.embodiment.openvla.prompts import (
    PromptEncoder,
    folder_tokenizer,
    word_tokenizer,
)

WORDS = ["open", "the", "door", "?"]


def test_each_word_has_its_token_and_prompts_are_padded_on_the_left():
    encode = PromptEncoder(word_tokenizer(WORDS), "the {task}?", 5)
    assert (encode.pad, encode.bos, encode.eos) == (0, 1, 2)
    ids = encode(["Open door", "door"])
    assert ids.tolist() == [[0, 4, 3, 5, 6], [0, 0, 4, 5, 6]]


def test_a_folder_gives_the_same_tokens(tmp_path):
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    encode = PromptEncoder(folder_tokenizer(tmp_path), "{task}", 3)
    assert encode(["open the door"]).tolist() == [[3, 4, 5]]


def test_what_cannot_be_read_is_told():
    encode = PromptEncoder(word_tokenizer(WORDS), "{task}", 2)
    with pytest.raises(ValueError, match=r"'shut the door'.*model.words does not list"):
        encode(["shut the door"])
    with pytest.raises(ValueError, match=r"has 3 tokens.*raise model.max_prompt_length"):
        encode(["open the door"])
    with pytest.raises(ValueError, match="1 to 2"):
        encode([""])
    with pytest.raises(ValueError, match="task_descriptions"):
        encode(None)
    with pytest.raises(ValueError, match="no place for the instruction"):
        PromptEncoder(word_tokenizer(WORDS), "do it", 2)
    with pytest.raises(ValueError, match=r"open more than once"):
        word_tokenizer([*WORDS, "Open"])
    with pytest.raises(ValueError, match="is empty"):
        word_tokenizer([])
