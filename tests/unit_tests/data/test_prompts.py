"""From records to prompts: templates, length limits, and an order that can be resumed."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from omegaconf import OmegaConf  # noqa: E402

from rlinf.data.datasets.base import PromptDataset, Record  # noqa: E402
from rlinf.data.prompt_encoder import PromptEncoder  # noqa: E402
from rlinf.data.prompts import (  # noqa: E402
    PromptSet,
    PromptStream,
    training_prompts,
    validation_prompts,
)
from rlinf.data.solution_encoder import SolutionEncoder  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from tests.unit_tests.data.settings import data_section  # noqa: E402

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class Words(PromptDataset):
    """Record i is a word of i + 1 letters."""

    def __init__(self, count, generated=False):
        self.count = count
        self.asked = []
        type(self).generated = generated

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return Record("x" * (index + 1), index, "words", {"place": index})

    def redraw(self, index, attempt):
        return Record("y" * max(1, index + 1 - attempt), index, "words", {"place": index})

    def prefetch(self, indices):
        self.asked.append(list(indices))


def prompt_set(count=10, generated=False, shuffle=True, seed=0, **keys):
    cfg = data_section(**keys)
    tokenizer = character_tokenizer()
    encoder = PromptEncoder(tokenizer, cfg)
    solutions = SolutionEncoder(tokenizer, encoder)
    words = Words(count, generated)
    return PromptSet(words, encoder, solutions, cfg, seed=seed, shuffle=shuffle)


def numbers(prompts):
    return [prompt.metadata["place"] for prompt in prompts]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 9), max_size=8), st.integers(0, 5))
def test_a_resumed_stream_goes_on_as_if_nothing_had_happened(count, takes, seed):
    whole = PromptStream(prompt_set(count, seed=seed))
    everything = whole.take(sum(takes) + 5)
    stream, found = PromptStream(prompt_set(count, seed=seed)), []
    for take in takes:
        found += stream.take(take)
        state = json.loads(json.dumps(stream.state_dict()))
        stream = PromptStream(prompt_set(count, seed=seed))
        stream.load_state_dict(state)
    found += stream.take(5)
    assert found == everything
    assert [prompt.index for prompt in found] == list(range(len(found)))
    for epoch in range(len(found) // count):
        once = numbers(found[epoch * count : (epoch + 1) * count])
        assert sorted(once) == list(range(count))


def test_epochs_have_orders_of_their_own_unless_they_are_not_shuffled():
    stream = PromptStream(prompt_set(30))
    first, second = numbers(stream.take(30)), numbers(stream.take(30))
    assert stream.epoch == 2 and first != second and sorted(first) == sorted(second)
    plain = PromptStream(prompt_set(5, shuffle=False))
    assert numbers(plain.take(7)) == [0, 1, 2, 3, 4, 0, 1]


def test_other_data_is_not_resumed():
    state = PromptStream(prompt_set(10)).state_dict()
    with pytest.raises(ValueError, match="prompts was 10 and is 9.*dataset was 'Words 10'"):
        PromptStream(prompt_set(9)).load_state_dict(state)
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        PromptStream(prompt_set(10, seed=1)).load_state_dict(state)


def test_long_prompts_are_an_error_unless_they_are_left_out():
    with pytest.raises(ValueError, match="7 of 10 prompts.*max_prompt_length=3.*has 10: raise it"):
        prompt_set(10, max_prompt_length=3)
    short = prompt_set(10, max_prompt_length=3, filter_prompt_by_length=True)
    assert (len(short), short.dropped) == (3, 7)
    assert sorted(numbers(PromptStream(short).take(3))) == [0, 1, 2]
    with pytest.raises(ValueError, match="all 10 prompts have more than data.max_prompt_length=1"):
        prompt_set(
            10, max_prompt_length=1, filter_prompt_by_length=True, prompt_template="{prompt}!"
        )


def test_generated_prompts_that_are_too_long_are_made_anew_in_their_place():
    keys = {"generated": True, "shuffle": False, "max_prompt_length": 4}
    prompts = prompt_set(6, filter_prompt_by_length=True, **keys)
    assert len(prompts) == 6
    texts = [prompts.prompt(i).text for i in range(6)]
    assert texts == ["x", "xx", "xxx", "xxxx", "yyyy", "yyyy"] and prompts.dropped == 3
    with pytest.raises(ValueError, match="has 5: raise it"):
        prompt_set(6, **keys).prompt(4)


def test_generated_prompts_are_announced_before_they_are_needed():
    prompts = prompt_set(100, generated=True, shuffle=False)
    PromptStream(prompts).take(4)
    assert prompts.dataset.asked == [list(range(20))]
    files = prompt_set(100, generated=False)
    PromptStream(files).take(4)
    assert files.dataset.asked == []


def encoder(template=None, **keys):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    return PromptEncoder(tokenizer, data_section(**keys))


def test_templates():
    plain = encoder(prompt_template="Q: {prompt} \\boxed{}\n")
    text, ids = plain.encode("1+1")
    assert text == "Q: 1+1 \\boxed{}\n" and len(ids) == len(text)
    chat = encoder(
        CHAT, apply_chat_template=True, system_prompt="think", prompt_template="{prompt}?"
    )
    assert chat.encode("hi")[0] == "[system]think[user]hi?[assistant]"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert chat.encode(messages)[0] == "[system]think[user]a[assistant]b[assistant]"


def test_wrong_prompts_and_templates_are_named():
    with pytest.raises(ValueError, match="the tokenizer has no chat template"):
        encoder(apply_chat_template=True)
    with pytest.raises(ValueError, match="list of messages; set data.apply_chat_template to true"):
        encoder().encode([{"role": "user", "content": "a"}])
    with pytest.raises(ValueError, match="cannot encode 'für'.*it knows"):
        encoder().encode("für")


def test_a_tokenizer_that_ends_texts_does_not_end_prompts():
    from tokenizers.processors import TemplateProcessing

    tokenizer = character_tokenizer("ab")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 0)]
    )
    assert tokenizer.encode("ab") == [2, 3, 0]
    assert PromptEncoder(tokenizer, data_section()).encode("ab")[1] == [2, 3]


def config(**data):
    data = data_section(**data)
    return OmegaConf.create({"runner": {"seed": 3}, "data": data})


def test_the_prompts_of_a_config(tmp_path, capsys):
    cfg = config(type="arithmetic", val_size=20, max_prompt_length=6)
    tokenizer = character_tokenizer()
    train, val = training_prompts(cfg, tokenizer), validation_prompts(cfg, tokenizer)
    (prompt,) = train.take(1)
    assert prompt.text.endswith("=") and prompt.task == "arithmetic"
    assert tokenizer.decode(prompt.token_ids) == prompt.text
    assert [val.prompt(i).index for i in range(len(val))] == list(range(20))
    assert pickle.loads(pickle.dumps(prompt)) == prompt
    (example,) = train.take_supervised(1)
    assert example.response_ids[-1] == tokenizer.eos_token_id
    solved = tokenizer.decode(example.response_ids, skip_special_tokens=True)
    question = tokenizer.decode(example.prompt_ids).rstrip("=")
    assert int(solved.rpartition(";")[2]) == sum(map(int, question.split("+")))
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "short", "answer": 1}\n{"prompt": "too long", "answer": 1}\n')
    files = {"train_data_paths": [str(path)], "max_prompt_length": 5}
    few = training_prompts(config(filter_prompt_by_length=True, **files), tokenizer)
    assert len(few.prompts) == 1
    assert "left out 1 of 2 prompts, which have more than 5 tokens" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no worked solution; name the field.*solution_key"):
        few.take_supervised(1)


def test_agents_go_on_with_the_messages_of_a_prompt():
    chat = encoder(CHAT, apply_chat_template=True, system_prompt="think")
    assert chat.messages("hi") == [
        {"role": "system", "content": "think"},
        {"role": "user", "content": "hi"},
    ]
    assert encoder().messages("hi") is None
