"""The endpoint without its protocols: prompts in, choices out, each as exact tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf.agents.calls import EngineCall
from rlinf.agents.serving.backend import Backend, Drawing, EngineGone
from rlinf.agents.serving.conversations import Conversations, Prompt
from rlinf.agents.serving.errors import ApiError, engine_gone
from rlinf.agents.serving.growing_text import GrowingText
from rlinf.agents.serving.sessions import Session, Sessions
from rlinf.agents.serving.tool_calls import ToolReader
from rlinf.agents.trajectory import Turn

_SEED_STEP = 7919
"""Between the seeds of the choices of a request."""


@dataclass
class Choice:
    """One response, complete.

    Attributes:
        index: Its number in the request.
        text: Of it, without stop texts and special tokens.
        token_ids: All that the engine wrote.
        logprobs: Of each token.
        versions: Of the weights that drew each token.
        finish_reason: `stop` or `length`.
        stop_text: The stop text that ended it; None if there was none.
        computed_tokens: What the engine read for it, less what it still had of earlier ones; None
            if it does not say, or was ended before it could.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_text: str | None = None
    computed_tokens: int | None = None


@dataclass(frozen=True)
class Delta:
    """What is new of a choice.

    Attributes:
        index: Of the choice.
        text: That is new.
        token_ids: That are new.
        logprobs: Of these.
        done: The whole choice, with its last delta.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    done: Choice | None = None


@dataclass(frozen=True)
class Ask:
    """A request, whatever the protocol.

    Attributes:
        prompt: What the engine reads.
        drawing: How it answers; its `max_new_tokens` fit behind the prompt.
        n: Choices.
        stops: Texts that end a choice.
        session: That it is part of; None is none.
        read: What the model reads that it has not read before in this session, as text.
        keep: Called with each choice that is complete.
    """

    prompt: Prompt
    drawing: Drawing
    n: int = 1
    stops: tuple[str, ...] = ()
    session: Session | None = None
    read: Sequence[Turn] = ()
    keep: Callable[[Choice], None] = lambda choice: None


class Endpoint:
    """Answers requests with the help of a backend.

    Args:
        backend: Generates.
        tokenizer: Of the model.
        model: Name of the model, which requests have to give.
        default: How tokens are drawn unless a request says otherwise. Its `max_new_tokens` is
            for requests without a limit of their own.
        has_template: Whether messages go through the chat template.
        system_prompt: For conversations without one.
        parser: Format of tool calls.
        stops: Texts of several tokens that end a choice unless a request names its own.
        sessions: Where sessions are kept; None is a place that forgets what has its reward.
        learns: Whether a policy learns from sessions. Then what a request draws otherwise than
            `default` does is no part of what is learnt: the trainer knows one distribution only.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Any,
        model: str,
        default: Drawing,
        *,
        has_template: bool,
        system_prompt: str | None = None,
        parser: str = "qwen",
        stops: tuple[str, ...] = (),
        sessions: Sessions | None = None,
        learns: bool = False,
    ) -> None:
        self.backend, self.tokenizer, self.model = backend, tokenizer, model
        self.default, self._stops, self._learns = default, stops, learns
        self.conversations = Conversations(tokenizer, has_template, system_prompt)
        self.tools = ToolReader(parser)
        self.sessions = Sessions() if sessions is None else sessions
        self.counts = {"requests": 0, "choices": 0, "aborted": 0, "known_tokens": 0, "rewritten": 0}

    def check_model(self, name: Any) -> None:
        """Refuse requests for another model."""
        if name != self.model:
            raise ApiError(
                f"model is {name!r}: this endpoint serves {self.model!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def fitted(self, prompt: Prompt, drawing: Drawing, limited: bool) -> Drawing:
        """Return how to draw so that the response fits behind the prompt.

        Args:
            prompt: What is read.
            drawing: What is asked for.
            limited: Whether the request itself names `max_new_tokens`, which must fit then.
        """
        if not prompt.token_ids:
            raise ApiError("the prompt is empty: at least one token is needed")
        most, length = self.backend.max_length, len(prompt.token_ids)
        room, wanted = most - length, drawing.max_new_tokens
        if room < 1 or (limited and wanted > room):
            asked = f" and {wanted} tokens are asked for" if limited else ""
            raise ApiError(
                f"the prompt has {length} tokens{asked}, but a sequence has at most {most}; "
                "shorten the one or the other",
                code="context_length_exceeded",
            )
        return replace(drawing, max_new_tokens=min(room, wanted))

    async def choices(self, ask: Ask) -> AsyncIterator[Delta]:
        """Generate all choices of a request side by side; yields what is new of them as it comes.

        Whoever closes this, or is cancelled, ends them.
        """
        self.counts["requests"] += 1
        self.counts["known_tokens"] += ask.prompt.known
        self.counts["rewritten"] += ask.prompt.rewritten
        session = ask.session
        if session is not None:
            session.running += 1
        news: asyncio.Queue[Delta | BaseException] = asyncio.Queue()
        tasks = [
            asyncio.ensure_future(self._follow(ask, index, news.put_nowait))
            for index in range(ask.n)
        ]
        left = ask.n
        try:
            while left:
                new = await news.get()
                if isinstance(new, BaseException):
                    raise new
                if new.done is not None:
                    left -= 1
                    # Also when nobody listens any more: this one is complete.
                    self._complete(ask, new.done)
                yield new
        except EngineGone as error:
            raise engine_gone(str(error)) from error
        except ValueError as error:
            raise ApiError(str(error)) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.counts["aborted"] += left
            if session is not None:
                session.running -= 1
                session.aborted += left
                session.used = time.monotonic()

    async def _follow(
        self, ask: Ask, index: int, tell: Callable[[Delta | BaseException], None]
    ) -> None:
        try:
            async with aclosing(self._choice(ask, index)) as deltas:
                async for delta in deltas:
                    tell(delta)
        except Exception as error:
            tell(error)

    async def _choice(self, ask: Ask, index: int) -> AsyncIterator[Delta]:
        text, choice = GrowingText(self.tokenizer, ask.stops or self._stops), Choice(index)
        drawing = ask.drawing
        if drawing.seed is not None:
            drawing = replace(drawing, seed=(drawing.seed + index * _SEED_STEP) % 2**31)
        session = "" if ask.session is None else ask.session.name
        pieces = self.backend.generate(ask.prompt.token_ids, drawing, session)
        async with aclosing(pieces) as stream:
            async for piece in stream:
                new, taken = "", 0
                for token in piece.token_ids:
                    taken += 1
                    new += text.add(token)
                    if text.stopped:
                        break
                choice.token_ids += piece.token_ids[:taken]
                choice.logprobs += piece.logprobs[:taken]
                choice.versions += piece.versions[:taken]
                reason = "stop" if text.stopped else piece.finish_reason
                if reason is not None:
                    new += text.finish()
                    choice.text, choice.finish_reason = text.text, reason
                    choice.stop_text = text.stop_text
                    choice.computed_tokens = piece.computed_tokens
                if new or taken or reason is not None:
                    yield Delta(
                        index,
                        new,
                        piece.token_ids[:taken],
                        piece.logprobs[:taken],
                        choice if reason is not None else None,
                    )
                if reason is not None:
                    return
        raise EngineGone("the engine ended a response without a reason")

    def _complete(self, ask: Ask, choice: Choice) -> None:
        self.counts["choices"] += 1
        ask.keep(choice)
        if ask.session is None:
            return
        call = EngineCall(
            prompt_ids=tuple(ask.prompt.token_ids),
            response_ids=tuple(choice.token_ids),
            logprobs=tuple(choice.logprobs),
            versions=tuple(choice.versions),
            finish_reason=choice.finish_reason,
            turn=len(ask.session.calls),
            computed_tokens=choice.computed_tokens,
            unlearnt=ask.drawing.differs(self.default) if self._learns else "",
            drawn=ask.drawing.distribution(),
        )
        written = self.conversations.raw_text(choice.token_ids)
        ask.session.add(ask.read if choice.index == 0 else (), call, written)
