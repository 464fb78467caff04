"""`/v1/responses`, as OpenAI defines it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from rlinf.agents.serving.chat import WITHOUT_EFFECT, offered
from rlinf.agents.serving.dialogue import Dialogue
from rlinf.agents.serving.endpoint import Choice, Delta, Endpoint
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.serving.fields import Fields
from rlinf.agents.serving.messages import Message, read_messages, read_tools
from rlinf.agents.serving.protocol import identity, sse
from rlinf.agents.serving.sessions import Session

_KNOWN = (
    "model input instructions stream tools tool_choice max_output_tokens temperature top_p "
    "previous_response_id"
).split()
_WITHOUT_EFFECT = (*WITHOUT_EFFECT, "reasoning", "include", "stream_options")
_NEUTRAL: dict[str, list[Any]] = {
    "background": [False],
    "conversation": [],
    "max_tool_calls": [],
    "prompt": [],
    "text": [{}, {"format": {"type": "text"}}],
    "top_logprobs": [0],
    "truncation": ["disabled"],
}
_REMEMBERED = 4096


class Responses:
    """Responses that `previous_response_id` may name, for one endpoint."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, list[Message]] = OrderedDict()

    def __call__(self, endpoint: Endpoint, body: Any, session: Session | None) -> Any:
        """Read a request; see `ReadRequest`."""
        return ResponseExchange(endpoint, body, session, self)

    def before(self, name: Any) -> list[Message]:
        """Return the conversation up to a response."""
        if name is None:
            return []
        if not isinstance(name, str) or name not in self._known:
            raise ApiError(
                f"there is no response {str(name)[:80]!r}; send the conversation as input",
                status=404,
                param="previous_response_id",
            )
        return self._known[name]

    def keep(self, name: str, messages: list[Message]) -> None:
        """Remember a conversation up to a response."""
        self._known[name] = messages
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


class ResponseExchange:
    """One response."""

    def __init__(
        self, endpoint: Endpoint, body: Any, session: Session | None, known: Responses
    ) -> None:
        fields = Fields(body, _KNOWN, _WITHOUT_EFFECT, _NEUTRAL)
        endpoint.check_model(fields.get("model"))
        self._name, self._created = identity("resp_")
        self._message, _ = identity("msg_")
        self._endpoint, self._known = endpoint, known
        self._asked = {name: fields.get(name) for name in ("instructions", "previous_response_id")}
        self.streams = fields.boolean("stream")
        self._limit = fields.integer("max_output_tokens", 1, 2**31)
        # Instructions are those of this response alone.
        self._own = known.before(fields.get("previous_response_id")) + read_input(
            fields.get("input")
        )
        instructions = fields.text("instructions")
        head = [{"role": "system", "content": instructions}] if instructions else []
        self._tools = fields.get("tools") or []
        self._dialogue = Dialogue(
            endpoint,
            [*head, *self._own],
            offered(fields, _read_tools(self._tools)),
            fields.drawing(self._limit, endpoint.default),
            limited=self._limit is not None,
            session=session,
        )
        self.ask = self._dialogue.ask
        self._number = 0
        self._began = False

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        """See `Exchange`."""
        (choice,) = choices
        answer = self._dialogue.answers[0]
        self._known.keep(self._name, [*self._own, answer])
        cut = choice.finish_reason == "length"
        read, written = len(self.ask.prompt.token_ids), len(choice.token_ids)
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }
        items = self._items(answer)
        return {
            **self._head("incomplete" if cut else "completed", items),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": usage,
        }

    def _head(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        drawing = self.ask.drawing
        return {
            "id": self._name,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._endpoint.model,
            "output": items,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": drawing.temperature,
            "top_p": drawing.top_p,
            "max_output_tokens": self._limit,
            "tool_choice": "auto",
            "tools": self._tools,
            **self._asked,
        }

    def _items(self, answer: Message) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        calls = answer.get("tool_calls", [])
        if answer["content"] or not calls:
            items.append(self._text_item("completed", [_part(answer["content"])]))
        for call in calls:
            function = call["function"]
            items.append(
                {
                    "type": "function_call",
                    "id": call["id"].replace("call_", "fc_", 1),
                    "call_id": call["id"],
                    "name": function["name"],
                    "arguments": function["arguments"],
                    "status": "completed",
                }
            )
        return items

    def _text_item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self._message,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    # -- streams --------------------------------------------------------------------------------

    def begin(self) -> Iterable[bytes]:
        """See `Exchange`."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._head("in_progress", []))

    def events(self, delta: Delta) -> Iterable[bytes]:
        """See `Exchange`."""
        text = self._dialogue.shown(delta)
        done = delta.done
        if not self._began and (text or (done is not None and not self._dialogue.calls(done))):
            self._began = True
            yield self._event(
                "response.output_item.added",
                output_index=0,
                item=self._text_item("in_progress", []),
            )
            yield self._part_event("response.content_part.added", part=_part(""))
        if text:
            yield self._part_event("response.output_text.delta", delta=text, logprobs=[])
        if done is not None:
            yield from self._last()

    def _last(self) -> Iterable[bytes]:
        answer = self._dialogue.answers[0]
        items = self._items(answer)
        for index, item in enumerate(items):
            if item["type"] == "message":
                text = answer["content"]
                yield self._part_event("response.output_text.done", text=text, logprobs=[])
                yield self._part_event("response.content_part.done", part=_part(text))
            else:
                added = {**item, "arguments": "", "status": "in_progress"}
                yield self._event("response.output_item.added", output_index=index, item=added)
                place = {"output_index": index, "item_id": item["id"]}
                arguments = item["arguments"]
                yield self._event(
                    "response.function_call_arguments.delta", delta=arguments, **place
                )
                yield self._event(
                    "response.function_call_arguments.done",
                    arguments=arguments,
                    name=item["name"],
                    **place,
                )
            yield self._event("response.output_item.done", output_index=index, item=item)

    def end(self, choices: list[Choice]) -> Iterable[bytes]:
        """See `Exchange`."""
        whole = self.whole(choices)
        yield self._event(f"response.{whole['status']}", response=whole)

    def _part_event(self, kind: str, **facts: Any) -> bytes:
        place = {"output_index": 0, "content_index": 0, "item_id": self._message}
        return self._event(kind, **place, **facts)

    def _event(self, kind: str, **facts: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse({"type": kind, "sequence_number": number, **facts}, kind)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# -- requests --------------------------------------------------------------------------------------


def read_input(value: Any) -> list[Message]:
    """Return the input of a request as messages of a chat."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError("input must be a text or a list of at least one item", param="input")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise ApiError(f"input[{i}] must be an object", param=f"input[{i}]")
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": _texts(item.get("content"))})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id", ""), "type": "function", "function": function}
            # Calls of one answer, and the text before them, are one message.
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            result = {"role": "tool", "tool_call_id": item.get("call_id")}
            messages.append({**result, "content": _texts(item.get("output"))})
        else:
            raise ApiError(
                f"input[{i}].type is {kind!r}: message, function_call and function_call_output are "
                "allowed",
                param=f"input[{i}].type",
            )
    return read_messages(messages)


def _texts(content: Any) -> Any:
    """Return content with its text parts as chats name them; others are refused there."""
    if not isinstance(content, list):
        return content
    named = ("input_text", "output_text")
    return [
        {**part, "type": "text"}
        if isinstance(part, Mapping) and part.get("type") in named
        else part
        for part in content
    ]


def _read_tools(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ApiError("tools must be a list", param="tools")
    tools = []
    for i, tool in enumerate(value):
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise ApiError(
                f"tools[{i}] must be of the type function; others would run elsewhere",
                param=f"tools[{i}]",
            )
        names = ("name", "description", "parameters")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        tools.append({"type": "function", "function": function})
    return read_tools(tools)
