"""`/v1/responses` and `/v1/messages`: the same endpoint in other words."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

pytest.importorskip("transformers")

from tests.unit_tests.agents.serving.scripted import (  # noqa: E402
    KEY,
    Scripted,
    post,
    serving,
    sessions_into,
)

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object"}}


async def stream(url: str, body: Any) -> list[dict[str, Any]]:
    headers = {"x-api-key": KEY}
    async with aiohttp.ClientSession() as client:
        async with client.post(url, json={**body, "stream": True}, headers=headers) as response:
            assert response.status == 200, await response.text()
            lines = (await response.text()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def ask(*messages: Any, **further: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 90, "messages": list(messages), **further}


# -- /v1/messages ----------------------------------------------------------------------------------


async def test_messages_answer_and_keep_exact_tokens() -> None:
    backend, found = Scripted("four", "sure"), []
    async with serving(backend, sessions=sessions_into(found)) as (url, endpoint):
        user = {"role": "user", "content": [{"type": "text", "text": "2+2?"}]}
        status, first = await post(f"{url}/messages", ask(user, system="be brief"), session="s")
        assert status == 200 and first["type"] == "message"
        assert first["content"] == [{"type": "text", "text": "four"}]
        assert first["stop_reason"] == "end_turn" and first["usage"]["output_tokens"] == 5
        answer = {"role": "assistant", "content": first["content"]}
        body = ask(user, answer, {"role": "user", "content": "sure?"}, system="be brief")
        await post(f"{url}/messages", body, session="s")
        assert endpoint.counts["known_tokens"] > 0
        await post(f"{url}/sessions/s/reward", {"reward": 1})
    assert len(found[0].trajectory.sequences()) == 1
    text = backend.tokenizer.decode(backend.prompts[0])
    assert text == "<system>be brief<eos>\n<user>2+2?<eos>\n<assistant>"


async def test_messages_with_tools() -> None:
    backend = Scripted(f"so {CALL}", "three")
    async with serving(backend) as (url, endpoint):
        user = {"role": "user", "content": "1+2?"}
        _, first = await post(f"{url}/messages", ask(user, tools=[TOOL]))
        assert first["stop_reason"] == "tool_use"
        text, use = first["content"]
        assert text["text"] == "so" and (use["name"], use["input"]) == ("add", {"a": 1})
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "3"}
        body = ask(
            user,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
            tools=[TOOL],
        )
        _, second = await post(f"{url}/messages", body)
        assert second["content"][0]["text"] == "three" and endpoint.counts["known_tokens"] > 0
    assert "<tool>3<eos>" in backend.tokenizer.decode(backend.prompts[1])


async def test_messages_as_a_stream() -> None:
    async with serving(Scripted(f"so {CALL}")) as (url, _):
        events = await stream(
            f"{url}/messages", ask({"role": "user", "content": "?"}, tools=[TOOL])
        )
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(d.get("text", "") for d in deltas).rstrip() == "so"
    assert deltas[-1] == {"type": "input_json_delta", "partial_json": '{"a": 1}'}
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_messages_end_at_stop_sequences() -> None:
    async with serving(Scripted("one END two")) as (url, _):
        body = ask({"role": "user", "content": "?"}, stop_sequences=["END"])
        _, found = await post(f"{url}/messages", body)
    assert found["stop_reason"] == "stop_sequence" and found["stop_sequence"] == "END"
    assert found["content"][0]["text"] == "one "


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"messages": [{"role": "system", "content": "x"}]}, "user or assistant"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "text only"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
    ],
)
async def test_wrong_messages_are_refused_as_clients_expect(change: Any, says: str) -> None:
    async with serving(Scripted("x")) as (url, _):
        body = {**ask({"role": "user", "content": "hi"}), **change}
        status, found = await post(f"{url}/messages", body)
        assert status == 400 and found["type"] == "error"
        assert (
            found["error"]["type"] == "invalid_request_error" and says in found["error"]["message"]
        )
        status, found = await post(f"{url}/messages", body, key="wrong")
        assert status == 401 and found["error"]["type"] == "authentication_error"


# -- /v1/responses ---------------------------------------------------------------------------------


async def test_responses_go_on_from_the_previous_one() -> None:
    backend = Scripted("four", "sure")
    async with serving(backend) as (url, endpoint):
        body = {"model": "tiny", "input": "2+2?"}
        status, first = await post(f"{url}/responses", body)
        assert status == 200 and first["status"] == "completed"
        assert first["output"][0]["content"][0]["text"] == "four"
        more = {"model": "tiny", "input": "sure?", "previous_response_id": first["id"]}
        await post(f"{url}/responses", more)
        assert endpoint.counts["known_tokens"] > 0
        status, _ = await post(f"{url}/responses", {**more, "previous_response_id": "resp_no"})
        assert status == 404
        status, found = await post(f"{url}/responses", {**body, "input": [{"type": "image"}]})
        assert status == 400 and "input[0].type" in found["error"]["message"]
    assert backend.tokenizer.decode(backend.prompts[1]).endswith(
        "four<eos>\n<user>sure?<eos>\n<assistant>"
    )


async def test_responses_with_the_client_of_openai() -> None:
    openai = pytest.importorskip(
        "openai", reason="the client of OpenAI is not installed: pip install 'rlinf[dev]'"
    )
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    async with serving(Scripted(f"so {CALL}", "three", f"so {CALL}", "cut off")) as (url, endpoint):
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            kwargs: dict[str, Any] = {"model": "tiny", "tools": [tool], "instructions": "brief"}
            first = await client.responses.create(input="1+2?", **kwargs)
            text, call = first.output
            assert first.output_text == "so" and (call.name, call.arguments) == ("add", '{"a": 1}')
            history = [
                {"role": "user", "content": "1+2?"},
                *(item.model_dump(exclude_none=True) for item in first.output),
                {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
            ]
            second = await client.responses.create(input=history, **kwargs)
            assert second.output_text == "three" and endpoint.counts["known_tokens"] > 0
            events = [
                event
                async for event in await client.responses.create(
                    input="1+2?", stream=True, **kwargs
                )
            ]
            kinds = [event.type for event in events]
            assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
            assert [event.sequence_number for event in events] == list(range(len(events)))
            deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
            assert "".join(deltas).rstrip() == "so"
            assert events[-1].response.output[1].name == "add"
            short = await client.responses.create(model="tiny", input="?", max_output_tokens=3)
            assert short.status == "incomplete" and short.output_text == "cut"
