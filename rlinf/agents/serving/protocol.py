"""What a protocol is: a request read, and answers written, whole or as a stream of events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any, Protocol

from rlinf.agents.serving.endpoint import Ask, Choice, Delta, Endpoint
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.sessions import Session


class Exchange(Protocol):
    """One request of a protocol.

    Attributes:
        ask: What it asks of the endpoint.
        streams: Whether the client reads events.
    """

    ask: Ask
    streams: bool

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """Return the answer as one object."""
        ...

    def begin(self) -> Iterable[bytes]:
        """Return the events before the first token."""
        ...

    def events(self, delta: Delta) -> Iterable[bytes]:
        """Return the events of what is new."""
        ...

    def end(self, choices: list[Choice]) -> Iterable[bytes]:
        """Return the events after the last token."""
        ...


class ReadRequest(Protocol):
    """Reads the body of a request."""

    def __call__(self, endpoint: Endpoint, body: Any, session: Session | None) -> Exchange:
        """Return what is asked for; raises `ApiError` if something is wrong with it."""
        ...


async def answer_of(endpoint: Endpoint, exchange: Exchange) -> dict[str, Any]:
    """Let the endpoint answer, and return the whole of it."""
    ask = exchange.ask
    if not ask.stops:
        # Stop texts are looked for as tokens come.
        ask = replace(ask, drawing=replace(ask.drawing, whole=True))
    done = [delta.done async for delta in endpoint.choices(ask) if delta.done is not None]
    return exchange.whole(sorted(done, key=lambda choice: choice.index))


async def events_of(endpoint: Endpoint, exchange: Exchange) -> AsyncIterator[bytes]:
    """Let the endpoint answer, and yield events as they come."""
    done: list[Choice] = []
    for event in exchange.begin():
        yield event
    async for delta in endpoint.choices(exchange.ask):
        for event in exchange.events(delta):
            yield event
        if delta.done is not None:
            done.append(delta.done)
    for event in exchange.end(sorted(done, key=lambda choice: choice.index)):
        yield event


def sse(data: Any, event: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = "" if event is None else f"event: {event}\n"
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"{head}data: {text}\n\n".encode()


def identity(prefix: str) -> tuple[str, int]:
    """Return a new name for an answer, and the time in seconds."""
    return f"{prefix}{secrets.token_hex(12)}", int(time.time())


def usage_of(ask: Ask, choices: Iterable[Choice]) -> dict[str, int]:
    """Return the tokens that were read and written."""
    read = len(ask.prompt.token_ids)
    written = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def wants_usage(options: Any, streams: bool) -> bool:
    """Return whether a stream ends with the usage, by `stream_options`."""
    if options is None:
        return False
    if not streams:
        raise ApiError("stream_options is for streams: set stream to true", param="stream_options")
    if not isinstance(options, dict):
        raise ApiError("stream_options must be an object", param="stream_options")
    return bool(options.get("include_usage"))


def token_facts(tokenizer: Any, token: int, logprob: float) -> dict[str, Any]:
    """Return a token with its log-probability, as chats show it."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    return {
        "token": text,
        "logprob": logprob,
        "bytes": list(text.encode()),
        "top_logprobs": [],
    }


def exact_tokens(ask: Ask, choice: Choice) -> dict[str, Any]:
    """Return the tokens that an engine read and wrote, for `return_token_ids`."""
    return {
        "prompt_token_ids": list(ask.prompt.token_ids),
        "token_ids": choice.token_ids,
        "versions": choice.versions,
    }
