"""`/v1/messages`, as Anthropic defines it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rlinf.agents.serving.dialogue import Dialogue
from rlinf.agents.serving.endpoint import Choice, Delta, Endpoint
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.fields import Fields
from rlinf.agents.serving.messages import Message, read_messages, read_tools
from rlinf.agents.serving.protocol import identity, sse
from rlinf.agents.serving.sessions import Session

_KNOWN = (
    "model messages max_tokens system stream stop_sequences temperature top_p top_k tools "
    "tool_choice"
).split()
_WITHOUT_EFFECT = ("metadata", "service_tier")
_NEUTRAL: dict[str, list[Any]] = {"thinking": [{"type": "disabled"}]}
_MOST_STOPS = 16


class MessagesExchange:
    """One message of the model."""

    def __init__(self, endpoint: Endpoint, body: Any, session: Session | None) -> None:
        fields = Fields(body, _KNOWN, _WITHOUT_EFFECT, _NEUTRAL)
        endpoint.check_model(fields.get("model"))
        limit = fields.integer("max_tokens", 1, 2**31)
        if limit is None:
            raise ApiError(
                "max_tokens is missing: the most tokens of the answer", param="max_tokens"
            )
        self._name, _ = identity("msg_")
        self._endpoint = endpoint
        self.streams = fields.boolean("stream")
        drawing = fields.drawing(limit, endpoint.default)
        top_k = fields.integer("top_k", 0, 2**31)
        self._dialogue = Dialogue(
            endpoint,
            _messages(fields.get("system"), fields.get("messages")),
            _tools(fields),
            drawing if top_k is None else replace(drawing, top_k=top_k),
            limited=True,
            stops=fields.stops("stop_sequences", _MOST_STOPS),
            session=session,
        )
        self.ask = self._dialogue.ask
        self._open = -1

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """See `Exchange`."""
        (choice,) = choices
        answer = self._dialogue.answers[0]
        content: list[dict[str, Any]] = []
        calls = self._dialogue.calls(choice)
        if answer["content"] or not calls:
            content.append({"type": "text", "text": answer["content"]})
        content += [_tool_use(call) for call in calls]
        return {
            **self._head(len(choice.token_ids)),
            "content": content,
            **self._ending(choice),
        }

    def _head(self, written: int) -> dict[str, Any]:
        return {
            "id": self._name,
            "type": "message",
            "role": "assistant",
            "model": self._endpoint.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(self.ask.prompt.token_ids), "output_tokens": written},
        }

    def _ending(self, choice: Choice) -> dict[str, Any]:
        reason = "end_turn" if choice.finish_reason == "stop" else "max_tokens"
        if choice.stop_text is not None:
            reason = "stop_sequence"
        if self._dialogue.calls(choice):
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": choice.stop_text}

    def begin(self) -> Iterable[bytes]:
        """See `Exchange`."""
        yield _event({"type": "message_start", "message": self._head(0)})

    def events(self, delta: Delta) -> Iterable[bytes]:
        """See `Exchange`."""
        text = self._dialogue.shown(delta)
        if text:
            if self._open < 0:
                yield from self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": text})
        if delta.done is None:
            return
        calls = self._dialogue.calls(delta.done)
        if self._open < 0 and not calls:
            yield from self._start({"type": "text", "text": ""})
        for call in calls:
            if self._open >= 0:
                yield self._stop()
            use = _tool_use(call)
            yield from self._start({**use, "input": {}})
            yield self._delta(
                {"type": "input_json_delta", "partial_json": call["function"]["arguments"]}
            )
        yield self._stop()

    def end(self, choices: list[Choice]) -> Iterable[bytes]:
        """See `Exchange`."""
        (choice,) = choices
        usage = {"output_tokens": len(choice.token_ids)}
        yield _event({"type": "message_delta", "delta": self._ending(choice), "usage": usage})
        yield _event({"type": "message_stop"})

    def _start(self, block: dict[str, Any]) -> Iterable[bytes]:
        self._open += 1
        kind = "content_block_start"
        yield _event({"type": kind, "index": self._open, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._open, "delta": delta})

    def _stop(self) -> bytes:
        return _event({"type": "content_block_stop", "index": self._open})


def _event(data: dict[str, Any]) -> bytes:
    return sse(data, data["type"])


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.loads(function["arguments"])
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


# -- requests --------------------------------------------------------------------------------------


def _tools(fields: Fields) -> list[dict[str, Any]]:
    """Return the tools as chats have them."""
    choice = fields.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind not in (None, "auto", "none"):
        raise ApiError(
            f"tool_choice is {kind!r}: auto and none are allowed; a model cannot be made to call a "
            "tool",
            param="tool_choice",
        )
    given = fields.get("tools")
    if kind == "none" or given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(tool, Mapping) for tool in given):
        raise ApiError("tools must be a list of objects", param="tools")
    return read_tools(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.get("name"),
                    "description": tool.get("description", ""),
                    "parameters": tool.get("input_schema", {}),
                },
            }
            for tool in given
        ]
    )


def _messages(system: Any, messages: Any) -> list[Message]:
    """Return messages as chats have them."""
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages must be a list of at least one message", param="messages")
    out: list[dict[str, Any]] = []
    if system is not None:
        out.append({"role": "system", "content": system})
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
            raise ApiError(f"messages[{i}].role must be user or assistant", param=f"messages[{i}]")
        out += _split(message, f"messages[{i}].content")
    return read_messages(out)


def _split(message: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Return a message as messages of a chat: results of tools are messages of their own."""
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise ApiError(f"{place} must be a text or a list of blocks", param=place)
    results, texts, calls = [], [], []
    for part in content:
        kind = part.get("type")
        if kind == "tool_use" and role == "assistant":
            arguments = json.dumps(part.get("input", {}))
            function = {"name": part.get("name"), "arguments": arguments}
            calls.append({"id": part.get("id", ""), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            inside = part.get("content", "")
            name = part.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": name, "content": inside})
        else:
            # What is no text is refused where messages are read.
            texts.append(dict(part))
    out = list(results)
    if texts or calls or not results:
        own: dict[str, Any] = {"role": role, "content": texts}
        out.append({**own, "tool_calls": calls} if calls else own)
    return out
