"""What a client sends again is not tokenised again; what it alters is a sequence of its own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from rlinf.agents.serving.tool_calls import ToolReader  # noqa: E402
from tests.unit_tests.agents.serving.scripted import (  # noqa: E402
    TEMPLATE,
    Scripted,
    chat,
    post,
    serving,
    sessions_into,
)

THINKS = TEMPLATE.replace(
    "{{ m.content }}",
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}",
)


class Odd(Scripted):
    """Writes `ab` as two tokens, where the tokenizer would make one of them."""


def ids_of(backend: Scripted, text: str) -> list[int]:
    return backend.tokenizer.encode(text)


async def test_a_history_sent_again_goes_on_from_its_tokens() -> None:
    backend = Scripted("four", "five")
    async with serving(backend) as (url, endpoint):
        _, first = await post(f"{url}/chat/completions", chat("2+2?", return_token_ids=True))
        answer = first["choices"][0]["message"]["content"]
        status, second = await post(
            f"{url}/chat/completions", chat("2+2?", answer, "and 5?", return_token_ids=True)
        )
    assert status == 200
    made = first["choices"][0]
    before = made["prompt_token_ids"] + made["token_ids"]
    assert backend.prompts[1][: len(before)] == before
    assert backend.prompts[1] == before + ids_of(backend, "\n<user>and 5?") + [0] + ids_of(
        backend, "\n<assistant>"
    )
    assert endpoint.counts["known_tokens"] == len(before)
    assert second["choices"][0]["message"]["content"] == "five"


async def test_tokens_are_kept_that_the_tokenizer_would_not_make() -> None:
    """Decoding and encoding again would give other tokens than the engine wrote."""
    backend = Scripted("ab")
    endpoint_tokens: list[int] = []

    async with serving(backend) as (url, endpoint):
        encode = endpoint.tokenizer.encode
        merged = len(endpoint.tokenizer)

        class Merges:
            """Makes one token of `ab`."""

            def __getattr__(self, name: str) -> Any:
                return getattr(endpoint_tokenizer, name)

            def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
                parts = text.split("ab")
                out = encode(parts[0])
                for part in parts[1:]:
                    out += [merged, *encode(part)]
                return out

        endpoint_tokenizer = endpoint.tokenizer
        endpoint.conversations._tokenizer = Merges()
        await post(f"{url}/completions", {"model": "tiny", "prompt": "x"})
        await post(f"{url}/completions", {"model": "tiny", "prompt": "xabc"})
        await post(f"{url}/completions", {"model": "tiny", "prompt": "yabc"})
    endpoint_tokens = ids_of(backend, "xabc")
    assert backend.prompts[1] == endpoint_tokens, "a and b, as the engine wrote them"
    assert backend.prompts[2] == [*ids_of(backend, "y"), merged, *ids_of(backend, "c")]


@pytest.mark.parametrize("altered", ["five", "four!"])
async def test_an_altered_history_is_another_sequence(altered: str) -> None:
    found: list[Any] = []
    backend = Scripted("four", "yes", "no")
    async with serving(backend, sessions=sessions_into(found)) as (url, _):
        place = f"{url}/chat/completions"
        await post(place, chat("2+2?"), session="s")
        await post(place, chat("2+2?", "four", "sure?"), session="s")
        await post(place, chat("2+2?", altered, "sure?"), session="s")
        await post(f"{url}/sessions/s/reward", {"reward": 1})
    (ended,) = found
    first, branch = ended.trajectory.sequences()
    text = backend.tokenizer.decode
    assert text(first.response_ids) == "four<eos>\n<user>sure?<eos>\n<assistant>yes<eos>"
    assert text(branch.prompt_ids) == f"<user>2+2?<eos>\n<assistant>{altered}<eos>\n" + (
        "<user>sure?<eos>\n<assistant>"
    )
    assert text(branch.response_ids) == "no<eos>"
    written = [
        [token for token, mine in zip(s.response_ids, s.loss_mask, strict=True) if mine]
        for s in (first, branch)
    ]
    assert text(written[0]) == "four<eos>yes<eos>" and text(written[1]) == "no<eos>"


async def test_scopes_do_not_share_histories() -> None:
    backend = Scripted("four")
    async with serving(backend) as (url, endpoint):
        place = f"{url}/chat/completions"
        await post(place, chat("2+2?"), session="one")
        await post(place, chat("2+2?", "four", "sure?"), session="other")
        assert endpoint.counts["known_tokens"] == 0
        await post(place, chat("2+2?", "four", "sure?"), session="one")
        assert endpoint.counts["known_tokens"] > 0


async def test_a_template_that_rewrites_begins_anew_and_is_counted() -> None:
    backend = Scripted("<think>so</think>four", "yes")
    async with serving(backend, template=THINKS) as (url, endpoint):
        place = f"{url}/chat/completions"
        _, first = await post(place, chat("2+2?"))
        answer = first["choices"][0]["message"]["content"]
        status, _ = await post(place, chat("2+2?", answer, "sure?"))
    assert status == 200 and endpoint.counts["rewritten"] == 1
    assert "so</think>" not in backend.tokenizer.decode(backend.prompts[1])


async def test_an_answer_that_was_cut_is_carried_on_behind_its_tokens() -> None:
    backend = Scripted("four", "yes")
    async with serving(backend) as (url, _):
        place = f"{url}/chat/completions"
        _, first = await post(place, chat("2+2?", max_tokens=2, return_token_ids=True))
        made = first["choices"][0]
        assert made["finish_reason"] == "length" and made["message"]["content"] == "fo"
        await post(place, chat("2+2?", "fo", "and?"))
    before = made["prompt_token_ids"] + made["token_ids"]
    assert backend.prompts[1][: len(before)] == before
    assert backend.tokenizer.decode(backend.prompts[1]).endswith(
        "fo<eos>\n<user>and?<eos>\n<assistant>"
    )


async def test_without_a_template_a_conversation_is_its_texts() -> None:
    backend = Scripted("<calc>1+1</calc>", "2")
    async with serving(backend, template=None) as (url, endpoint):
        place = f"{url}/chat/completions"
        body = chat("1+1=", stop=["</calc>"])
        _, first = await post(place, body)
        assert first["choices"][0]["message"]["content"] == "<calc>1+1"
        body["messages"] += [
            {"role": "assistant", "content": "<calc>1+1"},
            {"role": "tool", "tool_call_id": "c", "content": "(2)"},
        ]
        await post(place, body)
        status, refused = await post(place, chat("1+1=", tools=[TOOL]))
    text = backend.tokenizer.decode
    assert text(backend.prompts[1]) == "1+1=<calc>1+1</calc>(2)"
    assert status == 400 and refused["error"]["param"] == "tools"


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def test_tool_calls_are_read_and_their_history_is_known() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    backend = Scripted(f"let me see {call}", "it is 3")
    async with serving(backend) as (url, endpoint):
        place = f"{url}/chat/completions"
        _, first = await post(place, chat("1+2?", tools=[TOOL], return_token_ids=True))
        choice = first["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert message["content"] == "let me see"
        function = message["tool_calls"][0]["function"]
        assert function == {"name": "add", "arguments": '{"a": 1}'}
        body = chat("1+2?", tools=[TOOL])
        name = message["tool_calls"][0]["id"]
        body["messages"] += [message, {"role": "tool", "tool_call_id": name, "content": "3"}]
        _, second = await post(place, body)
    before = choice["prompt_token_ids"] + choice["token_ids"]
    assert backend.prompts[1][: len(before)] == before
    assert second["choices"][0]["message"]["content"] == "it is 3"
    assert backend.tokenizer.decode(backend.prompts[0]).startswith("[add]<user>")


async def test_a_call_that_cannot_be_read_is_text() -> None:
    backend = Scripted("<tool_call>{oh</tool_call>")
    async with serving(backend) as (url, _):
        _, found = await post(f"{url}/chat/completions", chat("?", tools=[TOOL]))
    choice = found["choices"][0]
    assert choice["message"]["content"] == "<tool_call>{oh</tool_call>"
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]


def test_a_stream_shows_what_is_kept_of_a_text_before_a_call() -> None:
    reader = ToolReader("qwen")
    text = 'Let me look.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    kept, calls = reader.split(text)
    assert kept == "Let me look." and len(calls) == 1
    # A client that joins what it was sent sends back what is kept.
    shown = max(reader.shown(text[:end]) for end in range(len(text) + 1))
    assert text[:shown] == kept
