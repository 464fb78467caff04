"""The real `openai` client against a real engine behind the endpoint."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

pytest.importorskip("transformers")
openai = pytest.importorskip(
    "openai", reason="the client of OpenAI is not installed: pip install 'rlinf[dev]'"
)

import torch  # noqa: E402
import transformers  # noqa: E402

from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from rlinf.hybrid_engines.generation.hf.engine import HFEngine  # noqa: E402
from rlinf.hybrid_engines.generation.hosting import HostedEngine  # noqa: E402
from tests.unit_tests.agents.serving.scripted import KEY, Scripted, post, serving, sessions_into  # noqa: E402

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


def tiny_engine(max_running: int = 8, **further: Any) -> HFEngine:
    tokenizer = character_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config)
    return HFEngine(
        model,
        max_length=256,
        max_running=max_running,
        device="cpu",
        eos_token_ids=[tokenizer.eos_token_id],
        **further,
    )


@asynccontextmanager
async def client_of(backend: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with serving(backend) as (url, endpoint):
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            yield client, endpoint


@pytest.fixture
async def real() -> AsyncIterator[tuple[Any, Any]]:
    hosted = HostedEngine(tiny_engine())
    async with client_of(hosted) as (client, endpoint):
        yield client, endpoint
    hosted.close()


async def test_a_chat(real: tuple[Any, Any]) -> None:
    client, _ = real
    kwargs = {"model": "tiny", "max_tokens": 12, "seed": 3, "temperature": 1.0, "top_p": 0.95}
    answer = await client.chat.completions.create(messages=MESSAGES, logprobs=True, n=2, **kwargs)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason in ("stop", "length")
        told = choice.logprobs.content
        assert all(token.logprob <= 0 and math.isfinite(token.logprob) for token in told)
        shown = "".join(token.token for token in told)
        assert shown.removesuffix("<eos>") == choice.message.content
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage.completion_tokens == sum(len(c.logprobs.content) for c in answer.choices)
    again = await client.chat.completions.create(messages=MESSAGES, n=2, **kwargs)
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]


async def test_a_stream_says_the_same(real: tuple[Any, Any]) -> None:
    client, _ = real
    kwargs = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 6}
    whole = await client.chat.completions.create(**kwargs)
    stream = await client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **kwargs
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 4, "it comes in pieces"


async def test_a_completion(real: tuple[Any, Any]) -> None:
    client, _ = real
    kwargs = {"model": "tiny", "prompt": "1+1=", "max_tokens": 8, "seed": 5}
    answer = await client.completions.create(logprobs=1, **kwargs)
    (choice,) = answer.choices
    told = choice.logprobs
    assert "".join(told.tokens).removesuffix("<eos>") == choice.text
    assert len(told.token_logprobs) == len(told.tokens) == len(told.text_offset)
    stream = await client.completions.create(stream=True, **kwargs)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == choice.text


async def test_history_is_not_tokenised_again(real: tuple[Any, Any]) -> None:
    client, endpoint = real
    messages, extra = list(MESSAGES), {"return_token_ids": True}
    before: list[int] = []
    for turn in range(3):
        answer = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=8, seed=turn, extra_body=extra
        )
        choice = answer.choices[0].model_dump()
        assert choice["prompt_token_ids"][: len(before)] == before
        before = choice["prompt_token_ids"] + choice["token_ids"]
        # As client code does it: the message object goes back as it came.
        messages += [answer.choices[0].message, {"role": "user", "content": "go on"}]
    assert endpoint.counts["known_tokens"] > 0 and endpoint.counts["rewritten"] == 0


async def test_a_client_that_stops_reading_frees_the_engine(real: tuple[Any, Any]) -> None:
    client, endpoint = real
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=200, stream=True, temperature=2.0
    )
    async for _ in stream:
        break
    await stream.close()
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    assert answer.choices
    hosted = endpoint.backend
    while hosted.load:
        await hosted.call(lambda engine: None)
    assert await hosted.call(lambda engine: engine.unfinished) == 0


async def test_tools() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {}}}
    for stream in (False, True):
        async with client_of(Scripted(f"so: {call}")) as (client, _):
            kwargs = {"model": "tiny", "messages": MESSAGES, "tools": [tool]}
            if not stream:
                answer = await client.chat.completions.create(**kwargs)
                message, reason = answer.choices[0].message, answer.choices[0].finish_reason
                text, calls = message.content, message.tool_calls
            else:
                chunks = [
                    chunk.choices[0]
                    async for chunk in await client.chat.completions.create(stream=True, **kwargs)
                ]
                text = "".join(chunk.delta.content or "" for chunk in chunks).rstrip()
                calls = [c for chunk in chunks for c in chunk.delta.tool_calls or ()]
                reason = chunks[-1].finish_reason
        assert (text, reason) == ("so:", "tool_calls")
        assert [(c.function.name, c.function.arguments) for c in calls] == [
            ("add", '{"a": 1, "b": 2}')
        ]


async def test_errors_are_those_of_the_client(real: tuple[Any, Any]) -> None:
    client, endpoint = real
    with pytest.raises(openai.BadRequestError, match="a sequence has at most 256") as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=999)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="serves 'tiny'"):
        await client.chat.completions.create(model="gpt", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_requests_go_on_across_new_weights(real: tuple[Any, Any]) -> None:
    """Weights change between two tokens; no request fails, and each token says its version."""
    client, endpoint = real
    hosted = endpoint.backend
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=40,
        seed=1,
        temperature=1.0,
        stream=True,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    last: Any = None
    updated = False
    async for chunk in stream:
        if chunk.choices[0].logprobs and not updated:
            updated = True
            named = await hosted.call(
                lambda e: {n: p.clone() for n, p in e.model.state_dict().items()}
            )
            await hosted.call(partial(_update, named))
        last = chunk.choices[0]
    versions = last.model_dump()["versions"]
    assert last.finish_reason in ("stop", "length")
    assert versions == sorted(versions) and set(versions) <= {0, 5}


async def test_sessions_say_how_much_of_their_prompts_the_engine_still_knew() -> None:
    found: list[Any] = []
    hosted = HostedEngine(tiny_engine(paged=True))
    async with serving(hosted, template=None, sessions=sessions_into(found)) as (url, _):
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            headers = {"X-RLinf-Session": "s"}
            prompt = "1+1=" * 20
            for _ in range(2):
                answer = await client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=60, extra_headers=headers
                )
                prompt += answer.choices[0].text + "12+34="
        assert (await post(f"{url}/sessions/s/reward", {"reward": 1}))[0] == 200
    hosted.close()
    first, second = found[0].trajectory.calls
    assert first.computed_tokens == len(first.prompt_ids)
    known = len(second.prompt_ids) - second.computed_tokens
    assert known and known % 64 == 0, "whole blocks are known"
    numbers = found[0].trajectory.numbers
    read = len(first.prompt_ids) + len(second.prompt_ids)
    assert numbers["prefix_reuse"] == pytest.approx(known / read)
    assert numbers["turns"] == 2 and numbers["prompt_tokens"] == read


def _update(named: dict[str, torch.Tensor], engine: HFEngine) -> None:
    engine.update_weights(named, 5, recompute=True)


def _copied(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


async def test_an_engine_that_fails_is_told_to_all() -> None:
    hosted = HostedEngine(tiny_engine())

    def fail(engine: HFEngine) -> None:
        def step() -> Any:
            raise RuntimeError("the device is gone")

        engine._step = step  # type: ignore[method-assign]

    async with client_of(hosted) as (client, _):
        await hosted.call(fail)
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="device is gone|no engine"):
                await client.chat.completions.create(model="tiny", messages=MESSAGES)
