"""Messages of a chat as clients send them, and as templates read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlinf.agents.serving.errors import ApiError

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = dict[str, Any]


def read_messages(value: Any) -> list[Message]:
    """Check the messages of a request, and bring them to one form.

    Returns:
        `role` and `content`, a text; with `tool_calls`, `tool_call_id` and `name` where there are
        any.
    """
    if not isinstance(value, list) or not value:
        raise ApiError("messages must be a list of at least one message", param="messages")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def _read_message(message: Any, place: str) -> Message:
    if not isinstance(message, Mapping):
        raise ApiError(f"{place} must be an object with role and content", param=place)
    role = message.get("role")
    if role not in ROLES:
        raise ApiError(
            f"{place}.role is {role!r}: {', '.join(ROLES)} are allowed", param=f"{place}.role"
        )
    out: Message = {"role": role, "content": _read_content(message.get("content"), role, place)}
    if message.get("tool_calls"):
        if role != "assistant":
            raise ApiError(f"{place}: only an assistant has tool_calls", param=place)
        out["tool_calls"] = _read_calls(message["tool_calls"], f"{place}.tool_calls")
    for name in ("tool_call_id", "name"):
        given = message.get(name)
        if given is not None:
            if not isinstance(given, str):
                raise ApiError(f"{place}.{name} must be a text", param=f"{place}.{name}")
            out[name] = given
    return out


def _read_content(content: Any, role: str, place: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    param = f"{place}.content"
    if not isinstance(content, list):
        raise ApiError(f"{param} must be a text or a list of text parts", param=param)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(
                f"{param} has a part of the type {kind!r}: this model reads text only", param=param
            )
        texts.append(part["text"])
    return "".join(texts)


def _read_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise ApiError(f"{place} must be a list", param=place)
    out = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        if not named or not isinstance(function.get("arguments"), str):
            raise ApiError(
                f"{place} must have a function with a name and arguments, which are a text of JSON",
                param=place,
            )
        function = {"name": function["name"], "arguments": function["arguments"]}
        out.append({"id": str(call.get("id", "")), "type": "function", "function": function})
    return out


def read_tools(value: Any) -> list[dict[str, Any]]:
    """Check the tools of a request; an absent list is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ApiError("tools must be a list", param="tools")
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ApiError(
                f"tools[{i}] must be of the type function, with a function that has a name",
                param=f"tools[{i}]",
            )
    return [dict(tool) for tool in value]


def for_template(message: Message) -> Message:
    """Return a message as chat templates expect it: the arguments of calls are objects."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (TypeError, ValueError):
            pass  # A template writes a text as it is.
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def digest(before: bytes, part: Any) -> bytes:
    """Return a hash of what came before and of one part more, plain data."""
    plain = json.dumps(part, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(before + plain.encode()).digest()


def digests(tools: Sequence[Any], messages: Sequence[Message]) -> list[bytes]:
    """Return the hash of a conversation up to each of its messages."""
    out, current = [], digest(b"", list(tools))
    for message in messages:
        current = digest(current, message)
        out.append(current)
    return out
