"""`/v1/completions`, as OpenAI defines it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf.agents.serving.conversations import Prompt
from rlinf.agents.serving.endpoint import Ask, Choice, Delta, Endpoint
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.fields import MOST_CHOICES, Fields
from rlinf.agents.serving.protocol import exact_tokens, identity, sse, usage_of, wants_usage
from rlinf.agents.serving.sessions import Session
from rlinf.agents.trajectory import Turn

_KNOWN = (
    "model prompt stream stream_options logprobs n stop seed max_tokens temperature top_p "
    "return_token_ids"
).split()
_WITHOUT_EFFECT = ("user", "metadata")
_NEUTRAL: dict[str, list[Any]] = {
    "frequency_penalty": [0],
    "presence_penalty": [0],
    "logit_bias": [{}],
    "best_of": [1],
    "echo": [False],
    "suffix": [""],
}


class CompletionExchange:
    """One text completion."""

    def __init__(self, endpoint: Endpoint, body: Any, session: Session | None) -> None:
        fields = Fields(body, _KNOWN, _WITHOUT_EFFECT, _NEUTRAL)
        endpoint.check_model(fields.get("model"))
        self._name, self._created = identity("cmpl-")
        self._endpoint = endpoint
        wanted = fields.integer("logprobs", 0, 5)
        if wanted is not None and wanted > 1:
            raise ApiError(
                f"logprobs is {wanted}: engines tell the log-probability of the token that was "
                "drawn alone; use 0 or 1",
                param="logprobs",
                code="unsupported_parameter",
            )
        self._logprobs = wanted is not None
        self._places: dict[int, int] = {}
        self._exact = fields.boolean("return_token_ids")
        self.streams = fields.boolean("stream")
        self._usage = wants_usage(fields.get("stream_options"), self.streams)
        limit = fields.integer("max_tokens", 1, 2**31)
        texts, scope = endpoint.conversations, "" if session is None else session.name
        prompt, text = _read_prompt(endpoint, fields.get("prompt"), scope)

        def keep(choice: Choice) -> None:
            if text is not None:
                texts.keep_text(prompt, text, choice.token_ids, scope)

        shown = text if text is not None else endpoint.tokenizer.decode(prompt.token_ids)
        new = shown[_known_text(session, shown) :]
        self.ask = Ask(
            prompt=prompt,
            drawing=endpoint.fitted(
                prompt, fields.drawing(limit, endpoint.default), limit is not None
            ),
            n=fields.integer("n", 1, MOST_CHOICES) or 1,
            stops=fields.stops(),
            session=session,
            read=[Turn("user", new)] if new else [],
            keep=keep,
        )

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """See `Exchange`."""
        return {
            **self._head(),
            "choices": [self._whole(choice) for choice in choices],
            "usage": usage_of(self.ask, choices),
        }

    def _whole(self, choice: Choice) -> dict[str, Any]:
        out = {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._probabilities(choice.index, choice.token_ids, choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        return {**out, **exact_tokens(self.ask, choice)} if self._exact else out

    def begin(self) -> Iterable[bytes]:
        """See `Exchange`."""
        return ()

    def events(self, delta: Delta) -> Iterable[bytes]:
        """See `Exchange`."""
        done = delta.done
        if not delta.text and done is None and not self._logprobs:
            return
        choice = {
            "index": delta.index,
            "text": delta.text,
            "logprobs": self._probabilities(delta.index, delta.token_ids, delta.logprobs),
            "finish_reason": None if done is None else done.finish_reason,
        }
        if done is not None and self._exact:
            choice |= exact_tokens(self.ask, done)
        yield sse({**self._head(), "choices": [choice]})

    def end(self, choices: list[Choice]) -> Iterable[bytes]:
        """See `Exchange`."""
        if self._usage:
            yield sse({**self._head(), "choices": [], "usage": usage_of(self.ask, choices)})
        yield sse("[DONE]")

    def _probabilities(self, index: int, tokens: Iterable[int], logprobs: Iterable[float]) -> Any:
        if not self._logprobs:
            return None
        tokenizer = self._endpoint.tokenizer
        texts = [tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
        places = []
        for text in texts:
            places.append(self._places.get(index, 0))
            self._places[index] = places[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": list(logprobs),
            "top_logprobs": None,
            "text_offset": places,
        }

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "text_completion",
            "created": self._created,
            "model": self._endpoint.model,
            "system_fingerprint": f"version-{self._endpoint.backend.version}",
        }


def _read_prompt(endpoint: Endpoint, value: Any, scope: str) -> tuple[Prompt, str | None]:
    """Return what the engine reads, and the text of it; None if tokens were given."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return endpoint.conversations.text(value, scope), value
    vocabulary = len(endpoint.tokenizer)
    if isinstance(value, list) and all(type(token) is int for token in value):
        wrong = [token for token in value if not 0 <= token < vocabulary]
        if wrong:
            raise ApiError(
                f"prompt has the token {wrong[0]}: 0 to {vocabulary - 1} are allowed",
                param="prompt",
            )
        return Prompt(list(value), len(value)), None
    raise ApiError(
        "prompt must be a text, or a list of tokens; send one request for each of several",
        param="prompt",
    )


def _known_text(session: Session | None, text: str) -> int:
    """Return how many characters of a text the session has seen."""
    seen = "" if session is None else "".join(turn.text for turn in session.turns)
    return len(seen) if seen and text.startswith(seen) else 0
