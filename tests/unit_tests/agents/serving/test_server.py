"""Who may ask what of the endpoint, and what comes of clients that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

pytest.importorskip("transformers")

from rlinf.agents.serving.backend import Drawing  # noqa: E402
from rlinf.agents.serving.limits import Limits, RateLimit  # noqa: E402
from rlinf.agents.serving.server import Server  # noqa: E402
from rlinf.agents.serving.sessions import Sessions  # noqa: E402
from tests.unit_tests.agents.serving.scripted import (  # noqa: E402
    KEY,
    Scripted,
    chat,
    make_endpoint,
    post,
    serving,
    sessions_into,
)

CHAT = "/chat/completions"


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def head(length: int, path: str = "/v1/chat/completions") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


async def still_answers(url: str) -> bool:
    status, _ = await post(url + CHAT, chat("hi"))
    return status == 200


@pytest.mark.parametrize("key", [None, "wrong", "", f"{KEY}x", "ключ"])
async def test_a_wrong_key_is_refused(key: str | None) -> None:
    backend = Scripted("yes")
    async with serving(backend) as (url, _):
        given = None if key is None else key.encode().decode("latin-1")
        status, found = await post(url + CHAT, chat("hi"), key=given)
        assert status == 401 and found["error"]["code"] == "invalid_api_key"
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{url}/models") as response:
                assert response.status == 401
            async with client.get(url.replace("/v1", "/health")) as response:
                assert response.status == 200
    assert not backend.prompts


async def test_it_listens_at_loopback_alone() -> None:
    async with serving(Scripted("yes")) as (url, _):
        assert urlsplit(url).hostname == "127.0.0.1"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{not json", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "JSON object"),
        ({"model": "tiny"}, "messages"),
        ({"model": "tiny", "messages": []}, "messages"),
        ({"model": "tiny", "messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"model": "tiny", "messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (chat("hi", temperature=9), "temperature is 9"),
        (chat("hi", temperature="hot"), "temperature is 'hot'"),
        (chat("hi", top_p=-1), "top_p"),
        (chat("hi", max_tokens=0), "max_tokens is 0"),
        (chat("hi", max_tokens=10**6), "at most 4096"),
        (chat("hi", n=10**6), "n is"),
        (chat("hi", stop=[""]), "stop"),
        (chat("hi", seed="x"), "seed"),
        (chat("hi", stream="yes"), "stream"),
        (chat("hi", top_logprobs=3), "top_logprobs is 3"),
        (chat("hi", frequency_penalty=1), "frequency_penalty is 1"),
        (chat("hi", tool_choice="required"), "tool_choice"),
        (chat("hi", beam_width=4), "unknown parameter 'beam_width'"),
        (chat("hi", stream_options={"include_usage": True}), "stream_options"),
        (chat("x" * 5000), "a sequence has at most 4096"),
        (chat("\N{SNOWMAN}"), "cannot encode"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_wrong_request_says_what_is_wrong(body: Any, says: str) -> None:
    backend = Scripted("yes")
    async with serving(backend) as (url, _):
        status, found = await post(url + CHAT, body)
        assert status == 400, found
        assert says in found["error"]["message"] or says == found["error"]["param"]
        assert found["error"]["type"] == "invalid_request_error"
        assert not backend.prompts
        assert await still_answers(url)


async def test_an_unknown_model_and_path_are_not_found() -> None:
    async with serving(Scripted("yes")) as (url, _):
        status, found = await post(url + CHAT, {**chat("hi"), "model": "other"})
        assert status == 404 and found["error"]["code"] == "model_not_found"
        status, found = await post(f"{url}/nothing", {})
        assert status == 404 and "error" in found


async def test_a_huge_body_is_not_read() -> None:
    limits = Limits(body_bytes=10_000)
    async with serving(Scripted("yes"), limits) as (url, _):
        status, found = await post(url + CHAT, chat("x" * 20_000))
        assert status == 413 and found["error"]["code"] == "request_too_large"
        # One that does not say how long it is, and never ends.
        reader, writer = await connect(url)
        writer.write(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        try:
            while not reader.at_eof():
                writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
                await writer.drain()
                if reader._buffer:  # type: ignore[attr-defined]
                    break
        except ConnectionError:
            pass
        answer = await reader.read(16)
        assert answer.startswith(b"HTTP/1.1 413")
        writer.close()
        assert await still_answers(url)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", head(100), head(100) + b'{"a":'])
async def test_a_client_that_sends_slowly_is_let_go(sent: bytes) -> None:
    limits = Limits(read_seconds=0.3)
    async with serving(Scripted("yes"), limits) as (url, _):
        reader, writer = await connect(url)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 30)
        assert answer == b"" or b" 408 " in answer
        writer.close()
        assert await still_answers(url)


async def test_connections_have_a_number() -> None:
    async with serving(Scripted("yes"), Limits(connections=3)) as (url, _):
        held = [await connect(url) for _ in range(3)]
        for _, writer in held:
            writer.write(b"POST")
        reader, _ = await connect(url)
        with pytest.raises(ConnectionError):
            if not await reader.read():
                raise ConnectionResetError
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("turns", range(6))
async def test_nobody_is_left_waiting_by_a_server_that_stops(turns: int) -> None:
    """A connection comes so many turns of the loop before."""
    server = Server(make_endpoint(Scripted("yes")), KEY)
    parts = urlsplit(await server.start())
    with socket.create_connection((parts.hostname, parts.port)) as late:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        late.setblocking(False)
        with contextlib.suppress(ConnectionError):
            wait = asyncio.get_running_loop().sock_recv(late, 1)
            assert await asyncio.wait_for(wait, 10) == b""


def test_the_rate_is_that_of_the_clock() -> None:
    now = [0.0]
    rate = RateLimit(2.0, 3, lambda: now[0])
    assert [rate.wait_of("a") for _ in range(3)] == [0, 0, 0]
    assert rate.wait_of("a") == pytest.approx(0.5)
    assert rate.wait_of("b") == 0, "others have their own"
    now[0] = 0.5
    assert rate.wait_of("a") == 0 and rate.wait_of("a") > 0


async def test_too_many_requests_are_told_when_to_come_again() -> None:
    limits = Limits(requests_per_second=0.001)
    async with serving(Scripted("yes"), limits) as (url, _):
        assert (await post(url + CHAT, chat("hi")))[0] == 200
        status, found = await post(url + CHAT, chat("hi"))
        assert status == 429 and found["error"]["type"] == "rate_limit_error"
        status, _ = await post(url + CHAT, chat("hi"), key="guess")
        assert status == 429, "guesses of keys count as well"


@pytest.mark.parametrize(("rate", "burst"), [(100.0, 200), (5.0, 10), (0.25, 1), (1000.0, 2000)])
def test_the_requests_of_two_seconds_may_come_at_once(rate: float, burst: int) -> None:
    assert Limits(requests_per_second=rate).burst == burst


async def test_requests_under_way_have_a_number() -> None:
    backend = Scripted("yes")
    backend.hold_after = 0
    async with serving(backend, Limits(in_flight=1)) as (url, _):
        first = asyncio.ensure_future(post(url + CHAT, chat("hi")))
        await backend.holds.wait()
        assert (await post(url + CHAT, chat("hi")))[0] == 429
        backend.go.set()
        assert (await first)[0] == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_generation(stream: bool) -> None:
    found: list[Any] = []
    backend = Scripted("a long answer")
    backend.hold_after = 3
    async with serving(backend, sessions=sessions_into(found)) as (url, endpoint):
        body = json.dumps(chat("hi", stream=stream)).encode()
        reader, writer = await connect(url)
        writer.write(head(len(body)).replace(b"Host: x", b"Host: x\r\nX-RLinf-Session: s") + body)
        if stream:
            await reader.readuntil(b'"content":"a"')
        await backend.holds.wait()
        writer.transport.abort()
        await asyncio.wait_for(backend.ended.wait(), 30)
        assert backend.load == 0
        backend.hold_after = None
        assert await still_answers(url)
        status, refused = await post(f"{url}/sessions/s/reward", {"reward": 1})
        assert status == 409 and refused["error"]["code"] == "session_empty"
        assert endpoint.counts["aborted"] == 1 and not found


async def test_half_of_a_connection_is_none() -> None:
    backend = Scripted("a long answer")
    backend.hold_after = 3
    async with serving(backend) as (url, _):
        body = json.dumps(chat("hi", stream=True)).encode()
        reader, writer = await connect(url)
        writer.write(head(len(body)) + body)
        await backend.holds.wait()
        writer.write_eof()
        await asyncio.wait_for(backend.ended.wait(), 30)
        backend.hold_after = None
        assert await still_answers(url)
        writer.close()


async def test_a_client_that_does_not_read_ends_its_generation() -> None:
    backend = Scripted("x" * 4000)
    backend.hold_after = 3900
    async with serving(backend, Limits(write_seconds=0.3)) as (url, _):
        body = json.dumps(chat("hi", stream=True, n=8, max_tokens=4000)).encode()
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        narrow = socket.create_connection((parts.hostname, parts.port))
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=narrow)
        transport.pause_reading()
        transport.write(head(len(body)) + body)
        await asyncio.wait_for(backend.ended.wait(), 60)
        transport.abort()


async def test_streams_come_piece_by_piece() -> None:
    backend = Scripted("four")
    backend.hold_after = 2
    async with serving(backend) as (url, _):
        headers = {"Authorization": f"Bearer {KEY}"}
        body = chat("2+2?", stream=True, stream_options={"include_usage": True}, logprobs=True)
        async with aiohttp.ClientSession() as client:
            async with client.post(url + CHAT, json=body, headers=headers) as response:
                assert response.content_type == "text/event-stream"
                early = await response.content.readuntil(b'"content":"o"')
                backend.go.set()
                rest = await response.content.read()
    events = [line[6:] for line in (early + rest).decode().split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == "four"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    told = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
    tokens = [token["token"] for each in told for token in each["content"]]
    assert tokens == [*"four", "<eos>"]


async def test_a_stop_text_is_never_shown() -> None:
    backend = Scripted("one END two")
    async with serving(backend) as (url, _):
        for stream in (False, True):
            body = chat("hi", stop=["END"], stream=stream)
            headers = {"Authorization": f"Bearer {KEY}"}
            async with aiohttp.ClientSession() as client:
                async with client.post(url + CHAT, json=body, headers=headers) as response:
                    text = await response.text()
            assert "EN" not in text and "two" not in text and '"stop"' in text
        assert backend.load == 0


async def test_texts_that_end_responses_of_the_run_end_those_of_clients() -> None:
    async with serving(Scripted("one END two"), stops=("END",)) as (url, _):
        _, own = await post(url + CHAT, chat("hi"))
        assert own["choices"][0]["message"]["content"] == "one "
        _, other = await post(url + CHAT, chat("hi", stop=["two"]))
        assert other["choices"][0]["message"]["content"] == "one END "


async def test_an_engine_that_dies_is_an_error_of_the_server() -> None:
    backend = Scripted("a long answer")
    backend.die_after = 2
    async with serving(backend) as (url, _):
        status, found = await post(url + CHAT, chat("hi"))
        assert status == 503 and "scripted died" in found["error"]["message"]
        status, _ = await post(url + CHAT, chat("hi"))
        assert status == 503


# -- sessions --------------------------------------------------------------------------------------


async def test_a_session_ends_with_its_reward() -> None:
    found: list[Any] = []
    backend = Scripted("four", "yes")
    async with serving(backend, sessions=sessions_into(found)) as (url, _):
        await post(url + CHAT, chat("2+2?"), session="s-1")
        await post(url + CHAT, chat("2+2?", "four", "sure?"), session="s-1")
        reward = f"{url}/sessions/s-1/reward"
        status, answer = await post(reward, {"reward": 0.5})
        assert (status, answer) == (200, {"id": "s-1", "reward": 0.5, "calls": 2})
        assert (await post(reward, {"reward": 0.5}))[0] == 409
        status, refused = await post(url + CHAT, chat("hi"), session="s-1")
        assert status == 409 and refused["error"]["code"] == "session_ended"
    (ended,) = found
    trajectory = ended.trajectory
    assert ended.reward == 0.5 and [call.turn for call in trajectory.calls] == [0, 1]
    assert [(turn.role, turn.text) for turn in trajectory.turns] == [
        ("user", "2+2?"),
        ("assistant", "four"),
        ("user", "sure?"),
        ("assistant", "yes"),
    ]
    (sequence,) = trajectory.sequences()
    assert set(sequence.versions) == {7} and trajectory.answer == "yes"
    assert backend.sessions == ["s-1", "s-1"]


@pytest.mark.parametrize("body", [{}, {"reward": None}, {"reward": "1"}, {"reward": True}, [1]])
async def test_a_wrong_reward_is_refused(body: Any) -> None:
    async with serving(Scripted("four")) as (url, _):
        await post(url + CHAT, chat("2+2?"), session="s")
        status, found = await post(f"{url}/sessions/s/reward", body)
        assert status == 400 and "NUMBER" in found["error"]["message"]


async def test_infinite_rewards_are_refused() -> None:
    async with serving(Scripted("four")) as (url, _):
        await post(url + CHAT, chat("2+2?"), session="s")
        for text in ("NaN", "Infinity", "1e999", "1e39", f"1{'0' * 400}"):
            status, _ = await post(f"{url}/sessions/s/reward", f'{{"reward": {text}}}')
            assert status == 400


async def test_unknown_and_odd_sessions_are_refused() -> None:
    async with serving(Scripted("four")) as (url, _):
        assert (await post(f"{url}/sessions/none/reward", {"reward": 1}))[0] == 404
        assert (await post(url + CHAT, chat("hi"), session="a/b c"))[0] == 400
        assert (await post(url + CHAT, chat("hi"), session="x" * 200))[0] == 400


async def test_a_session_has_a_bound() -> None:
    """It keeps all that was read and written, so that a client cannot fill the memory with it."""
    found: list[Any] = []
    sessions = Sessions(found.append, most_tokens=40)
    async with serving(Scripted("four"), sessions=sessions) as (url, _):
        assert (await post(url + CHAT, chat("2+2?"), session="s"))[0] == 200
        assert (await post(url + CHAT, chat("2+2?", "four", "sure?"), session="s"))[0] == 200
        status, refused = await post(url + CHAT, chat("again?"), session="s")
        assert status == 409 and refused["error"]["code"] == "session_full"
        assert "40 is the most; send its reward" in refused["error"]["message"]
        assert (await post(url + CHAT, chat("2+2?"), session="t"))[0] == 200
        assert (await post(f"{url}/sessions/s/reward", {"reward": 1.0}))[0] == 200
    assert len(found[0].trajectory.calls) == 2


async def test_a_reward_waits_for_what_is_under_way() -> None:
    backend = Scripted("four")
    async with serving(backend) as (url, _):
        await post(url + CHAT, chat("hi"), session="s")
        backend.hold_after = 1
        second = asyncio.ensure_future(post(url + CHAT, chat("ho"), session="s"))
        await backend.holds.wait()
        status, found = await post(f"{url}/sessions/s/reward", {"reward": 1})
        assert status == 409 and found["error"]["code"] == "session_busy"
        backend.go.set()
        await second
        assert (await post(f"{url}/sessions/s/reward", {"reward": 1}))[0] == 200


DRAWN = Drawing(max_new_tokens=128, temperature=0.7, top_p=0.9, top_k=20)
"""How the run draws."""


@pytest.mark.parametrize(
    ("path", "asked", "named"),
    [
        (CHAT, {}, ""),
        (CHAT, {"temperature": 0.7, "top_p": 0.9, "max_tokens": 3, "seed": 4, "stop": ["x"]}, ""),
        (CHAT, {"temperature": 0}, "temperature 0 instead of 0.7"),
        (CHAT, {"temperature": 1.0}, "temperature 1 instead of 0.7"),
        (CHAT, {"top_p": 0.5}, "top_p 0.5 instead of 0.9"),
        ("/messages", {"max_tokens": 9, "top_k": 20}, ""),
        ("/messages", {"max_tokens": 9, "top_k": 4}, "top_k 4 instead of 20"),
    ],
)
async def test_what_is_drawn_otherwise_is_served_and_not_learnt_from(
    path: str, asked: dict[str, Any], named: str
) -> None:
    """The trainer knows one distribution; tokens of another would have wrong ratios."""
    for learns in (True, False):
        backend, found = Scripted("four", "five"), []
        async with serving(backend, sessions=sessions_into(found), learns=learns) as (url, own):
            own.default = DRAWN
            assert (await post(url + path, chat("2+2?", **asked), session="s"))[0] == 200
            await post(url + CHAT, chat("hi"), session="s")
            await post(f"{url}/sessions/s/reward", {"reward": 1})
        drawing = backend.drawings[0]
        assert drawing.temperature == asked.get("temperature", 0.7)
        assert drawing.top_p == asked.get("top_p", 0.9)
        (session,) = found
        assert [call.unlearnt for call in session.trajectory.calls] == [named * learns, ""]
        masks = [sequence.loss_mask for sequence in session.trajectory.sequences()]
        assert [any(mask) for mask in masks] == [not (named and learns), True]
