"""Conversations as tokens, turn by turn, and templates that cannot be used so."""

import pytest

pytest.importorskip("transformers")

from rlinf.agents.templates import ChatFormat, TemplateRewrites, check_template  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402

APPENDS = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DROPS_THOUGHTS = (
    "{%- for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
COUNTS = (
    "{{ messages | length }} messages\n"
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ANOTHER_END = APPENDS.replace("<eos>", "<|end|>")


def tokenizer(template):
    made = character_tokenizer()
    made.chat_template = template
    return made


def ask(content="1+1?"):
    return [{"role": "user", "content": content}]


def test_turns_are_appended_without_touching_what_was_generated():
    words = tokenizer(APPENDS)
    chat = ChatFormat(words)
    messages, answer = ask(), {"role": "assistant", "content": "let me see"}
    new = [{"role": "tool", "content": "2"}]
    ids = chat.begin(messages)
    # Ids that no text would be tokenised to: the model wrote them, so they stay.
    generated = [5, 5, words.eos_token_id]
    ids += generated
    ids += chat.between(messages, answer, new, ended=True)
    expected = chat.render([*messages, {**answer, "content": "@"}, *new], True)
    before, after = expected.split("@<eos>")
    whole = [*words.encode(before), *generated, *words.encode(after)]
    assert ids == whole
    assert after == "\n<|tool|>2<eos>\n<|assistant|>"


def test_an_answer_that_was_cut_is_closed_first():
    chat = ChatFormat(tokenizer(APPENDS))
    new, answer = ask("go on"), {"role": "assistant", "content": "x"}
    cut, ended = (chat.between(ask(), answer, new, ended=e) for e in (False, True))
    assert cut == [0, *ended]


@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_template_that_drops_thoughts_is_named_with_the_text(role):
    chat = ChatFormat(tokenizer(DROPS_THOUGHTS))
    check_template(chat.render, thinks=False, roles=[role])
    with pytest.raises(TemplateRewrites) as caught:
        check_template(chat.render, thinks=True, roles=[role])
    assert caught.value.before.startswith("<think>\nit seems so")
    said = str(caught.value)
    assert f"when a message of the {role} follows" in said and "'<think>" in said
    assert "a template that only appends" in said


def test_a_template_whose_beginning_changes_is_found_while_a_conversation_goes_on():
    chat = ChatFormat(tokenizer(COUNTS))
    with pytest.raises(TemplateRewrites, match="when the answer of the model follows") as caught:
        chat.between(ask(), {"role": "assistant", "content": "x"}, ask("more"), ended=True)
    assert (caught.value.before[0], caught.value.after[0]) == ("1", "2")


def test_thoughts_that_are_dropped_are_found_while_a_conversation_goes_on():
    chat = ChatFormat(tokenizer(DROPS_THOUGHTS))
    thoughtful = {"role": "assistant", "content": "<think>hm</think>2"}
    with pytest.raises(TemplateRewrites, match="message of the tool") as caught:
        chat.between(ask(), thoughtful, [{"role": "tool", "content": "2"}], ended=True)
    assert caught.value.before.startswith("<think>hm")


def test_an_end_token_that_the_template_does_not_write_is_found():
    chat = ChatFormat(tokenizer(ANOTHER_END))
    with pytest.raises(TemplateRewrites, match="do not belong together"):
        chat.between(ask(), {"role": "assistant", "content": "x"}, ask("more"), ended=True)


def test_templates_are_told_of_the_tools_and_of_their_variables():
    words = tokenizer("{{ tools | length }} {{ tools[0].name }} {{ mood }}" + APPENDS)
    chat = ChatFormat(words, [{"name": "calculator"}], {"mood": "calm"})
    assert chat.render(ask(), False).startswith("1 calculator calm<|user|>")


def test_without_a_template_there_is_no_chat():
    with pytest.raises(ValueError, match="no chat template; use the tokenizer of"):
        ChatFormat(character_tokenizer())
