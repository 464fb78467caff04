"""A backend that writes what a test tells it to, and an endpoint over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from rlinf.agents.serving.backend import Drawing, EngineGone, Piece
from rlinf.agents.serving.endpoint import Endpoint
from rlinf.agents.serving.limits import Limits
from rlinf.agents.serving.server import Server
from rlinf.agents.serving.sessions import Sessions
from rlinf.data.tokenizer import character_tokenizer

KEY = "test-key"
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}|{{ c.function.name }}{% endfor %}<eos>\n{% endfor -%}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Scripted:
    """Writes a text per request; `<eos>` at its end unless it is cut.

    Args:
        texts: In turn; a function of the prompt's text is called.
        name: Says which.
    """

    def __init__(self, *texts: str | Callable[[str], str], name: str = "scripted") -> None:
        self.name, self.tokenizer = name, character_tokenizer()
        self.texts = list(texts)
        self.max_length, self.alive, self.version = 4096, True, 7
        self.prompts: list[list[int]] = []
        self.drawings: list[Drawing] = []
        self.sessions: list[str] = []
        self.load = 0
        self.hold_after: int | None = None
        """Tokens after which a response waits for `go`."""
        self.die_after: int | None = None
        self.go, self.holds = asyncio.Event(), asyncio.Event()
        self.ended = asyncio.Event()
        """Set when a response was given up before its end."""

    async def generate(
        self, prompt_ids: Sequence[int], drawing: Drawing, session: str = ""
    ) -> AsyncIterator[Piece]:
        self.prompts.append(list(prompt_ids))
        self.drawings.append(drawing)
        self.sessions.append(session)
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if callable(text):
            text = text(self.tokenizer.decode(list(prompt_ids)))
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        reason = "stop" if len(ids) <= drawing.max_new_tokens else "length"
        ids = ids[: drawing.max_new_tokens]
        self.load += 1
        whole = False
        try:
            for place, token in enumerate(ids):
                if place == self.die_after:
                    self.alive = False
                    raise EngineGone(f"{self.name} died")
                if place == self.hold_after:
                    self.holds.set()
                    await self.go.wait()
                last = place == len(ids) - 1
                whole = last
                yield Piece([token], [-0.5], [self.version], reason if last else None)
                await asyncio.sleep(0)
        finally:
            self.load -= 1
            if not whole:
                self.ended.set()


def make_endpoint(backend: Any, template: str | None = TEMPLATE, **further: Any) -> Endpoint:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    default = Drawing(max_new_tokens=128)
    further = {"has_template": template is not None, **further}
    return Endpoint(backend, tokenizer, "tiny", default, **further)


@asynccontextmanager
async def serving(
    backend: Any, limits: Limits | None = None, **further: Any
) -> AsyncIterator[tuple[str, Endpoint]]:
    """Serve a backend; gives its address and the endpoint."""
    endpoint = make_endpoint(backend, **further)
    server = Server(endpoint, KEY, limits)
    url = await server.start()
    try:
        yield url, endpoint
    finally:
        await server.stop()


async def post(
    url: str, body: Any, key: str | None = KEY, session: str | None = None
) -> tuple[int, Any]:
    """Send a request; returns status and JSON."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if session is not None:
        headers["X-RLinf-Session"] = session
    data = {"data": body} if isinstance(body, bytes | str) else {"json": body}
    async with aiohttp.ClientSession() as client:
        async with client.post(url, headers=headers, **data) as response:
            return response.status, await response.json()


def chat(*texts: str, **further: Any) -> dict[str, Any]:
    """A chat in which user and assistant take turns."""
    roles = ["user", "assistant"]
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"model": "tiny", "messages": messages, **further}


def sessions_into(found: list[Any]) -> Sessions:
    return Sessions(found.append)
