"""`/v1/chat/completions`, as OpenAI defines it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf.agents.serving.dialogue import Dialogue
from rlinf.agents.serving.endpoint import Choice, Delta, Endpoint
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.fields import MOST_CHOICES, Fields
from rlinf.agents.serving.messages import read_messages, read_tools
from rlinf.agents.serving.protocol import (
    exact_tokens,
    identity,
    sse,
    token_facts,
    usage_of,
    wants_usage,
)
from rlinf.agents.serving.sessions import Session

_KNOWN = (
    "model messages stream stream_options tools tool_choice logprobs top_logprobs n stop seed "
    "max_tokens max_completion_tokens temperature top_p return_token_ids"
).split()
WITHOUT_EFFECT = (
    "user metadata store service_tier parallel_tool_calls safety_identifier prompt_cache_key "
    "reasoning_effort verbosity"
).split()
_NEUTRAL: dict[str, list[Any]] = {
    "frequency_penalty": [0],
    "presence_penalty": [0],
    "logit_bias": [{}],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "audio": [],
    "functions": [[]],
    "function_call": ["auto", "none"],
    "prediction": [],
    "web_search_options": [],
}


class ChatExchange:
    """One chat completion."""

    def __init__(self, endpoint: Endpoint, body: Any, session: Session | None) -> None:
        fields = Fields(body, _KNOWN, WITHOUT_EFFECT, _NEUTRAL)
        endpoint.check_model(fields.get("model"))
        messages = read_messages(fields.get("messages"))
        tools = offered(fields, read_tools(fields.get("tools")))
        self._name, self._created = identity("chatcmpl-")
        self._endpoint = endpoint
        self._logprobs = fields.boolean("logprobs")
        if fields.integer("top_logprobs", 0, 20):
            raise ApiError(
                f"top_logprobs is {fields.get('top_logprobs')}: engines tell the log-probability "
                "of the token that was drawn alone; use 0, with logprobs: true",
                param="top_logprobs",
                code="unsupported_parameter",
            )
        self._exact = fields.boolean("return_token_ids")
        self.streams = fields.boolean("stream")
        self._usage = wants_usage(fields.get("stream_options"), self.streams)
        name = "max_tokens" if fields.get("max_completion_tokens") is None else _COMPLETION
        limit = fields.integer(name, 1, 2**31)
        self._dialogue = Dialogue(
            endpoint,
            messages,
            tools,
            fields.drawing(limit, endpoint.default),
            limited=limit is not None,
            n=fields.integer("n", 1, MOST_CHOICES) or 1,
            stops=fields.stops(),
            session=session,
        )
        self.ask = self._dialogue.ask

    # -- whole ----------------------------------------------------------------------------------

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """See `Exchange`."""
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage_of(self.ask, choices),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message = dict(self._dialogue.answers[choice.index])
        if "tool_calls" in message and not message["content"]:
            message["content"] = None
        out = {
            "index": choice.index,
            "message": message,
            "logprobs": self._probabilities(choice.token_ids, choice.logprobs),
            "finish_reason": self._reason(choice),
        }
        return {**out, **exact_tokens(self.ask, choice)} if self._exact else out

    def _reason(self, choice: Choice) -> str:
        return "tool_calls" if self._dialogue.calls(choice) else choice.finish_reason

    def _probabilities(self, tokens: Iterable[int], logprobs: Iterable[float]) -> Any:
        if not self._logprobs:
            return None
        tokenizer = self._endpoint.tokenizer
        pairs = zip(tokens, logprobs, strict=True)
        return {"content": [token_facts(tokenizer, *pair) for pair in pairs], "refusal": None}

    # -- streams --------------------------------------------------------------------------------

    def begin(self) -> Iterable[bytes]:
        """See `Exchange`."""
        for index in range(self.ask.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def events(self, delta: Delta) -> Iterable[bytes]:
        """See `Exchange`."""
        index, text = delta.index, self._dialogue.shown(delta)
        if text or (self._logprobs and delta.token_ids):
            found = self._probabilities(delta.token_ids, delta.logprobs)
            yield self._chunk(index, {"content": text}, logprobs=found)
        if delta.done is None:
            return
        for number, call in enumerate(self._dialogue.calls(delta.done)):
            yield self._chunk(index, {"tool_calls": [{"index": number, **call}]})
        further = exact_tokens(self.ask, delta.done) if self._exact else {}
        yield self._chunk(index, {}, reason=self._reason(delta.done), further=further)

    def end(self, choices: list[Choice]) -> Iterable[bytes]:
        """See `Exchange`."""
        if self._usage:
            usage = usage_of(self.ask, choices)
            yield sse({**self._head("chat.completion.chunk"), "choices": [], "usage": usage})
        yield sse("[DONE]")

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Any = None,
        reason: str | None = None,
        further: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        choice |= further or {}
        return sse({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": kind,
            "created": self._created,
            "model": self._endpoint.model,
            "system_fingerprint": f"version-{self._endpoint.backend.version}",
        }


_COMPLETION = "max_completion_tokens"


def offered(fields: Fields, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that the model is told of."""
    choice = fields.get("tool_choice")
    if choice in (None, "auto"):
        return tools
    if choice == "none":
        return []
    raise ApiError(
        f"tool_choice is {str(choice)[:80]!r}: auto and none are allowed; a model cannot be made "
        "to call a tool",
        param="tool_choice",
        code="unsupported_parameter",
    )
