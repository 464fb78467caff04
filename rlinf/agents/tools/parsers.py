"""Public formats of tool calls: how a model writes them, and how it reads what came of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlinf.agents.tools.toolbox import MalformedCall, Toolbox, ToolCall, ToolResult
from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call as Signature
from rlinf.config.signatures import check_call, check_method

Call = ToolCall | MalformedCall

parser_registry: PluginTable[type[ToolParser]] = PluginTable(
    "tool_parser",
    dict.fromkeys(("qwen", "llama_json", "searchr1"), "rlinf.agents.tools.parsers"),
)


_NO_JSON = (ValueError, RecursionError)
"""What reading JSON that a model wrote may raise; the latter if it is nested too deeply."""


class ToolParser:
    """Reads the tool calls of a response.

    Args:
        tools: that may be called.

    Attributes:
        inline: whether answers are appended to the text of the model, which goes on behind them;
            otherwise they are messages of the role `tool`.
    """

    inline: ClassVar[bool] = False

    def __init__(self, tools: Toolbox) -> None:
        self.tools = tools

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a response, besides the end token."""
        return ()

    def parse(self, text: str) -> list[Call]:
        """Return the calls of a response, in their order; none if it is an answer."""
        raise NotImplementedError

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Return the text by which a model makes some calls; for worked solutions."""
        raise NotImplementedError

    def answer(self, results: Sequence[ToolResult]) -> str:
        """Return what is appended to the text of the model; for inline formats."""
        raise NotImplementedError

    def messages(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        """Return the messages that the model reads next, one for each result; if not inline."""
        return [
            {"role": "tool", "name": result.name, "content": _marked(result)} for result in results
        ]


class QwenParser(ToolParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, of Hermes, Qwen2.5 and Qwen3."""

    _call = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)

    def parse(self, text: str) -> list[Call]:
        """Read each `<tool_call>`."""
        calls: list[Call] = []
        for inside, end in self._call.findall(text):
            if not end:
                calls.append(MalformedCall("a <tool_call> has no </tool_call>"))
            else:
                calls.append(_of_json(inside.strip(), "arguments"))
        return calls

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Write a `<tool_call>` for each."""
        return "\n".join(
            f"<tool_call>\n{_as_json(call, 'arguments')}\n</tool_call>" for call in calls
        )


class LlamaParser(ToolParser):
    """`{"name": ..., "parameters": {...}}` as the whole response, of Llama 3; several by `;`."""

    _tag, _end = "<|python_tag|>", "<|eom_id|>"

    def parse(self, text: str) -> list[Call]:
        """Read a response that is JSON; any other is an answer."""
        tagged = self._tag in text
        rest = text.rpartition(self._tag)[2].strip().removesuffix(self._end).strip()
        if not tagged and not rest.startswith("{"):
            return []
        calls: list[Call] = []
        while rest:
            try:
                found, end = json.JSONDecoder().raw_decode(rest)
                call = _of_value(found, "parameters")
            except _NO_JSON:
                return [*calls, MalformedCall(f"no JSON: {_short(rest)}")]
            if not tagged and not calls and not (isinstance(found, Mapping) and "name" in found):
                # Some other JSON is an answer.
                return []
            calls.append(call)
            rest = rest[end:].lstrip(" \n;")
        return calls

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Write JSON, several by `;`."""
        return "; ".join(_as_json(call, "parameters") for call in calls)


class TagParser(ToolParser):
    """`<search>...</search>`, answered by `<information>...</information>`, of Search-R1.

    Each tool has the tag of its name; what is inside is its first argument.
    """

    inline = True

    @property
    def stops(self) -> tuple[str, ...]:
        """The model waits behind each call."""
        return tuple(f"</{name}>" for name in self.tools.names)

    def parse(self, text: str) -> list[Call]:
        """Read what is inside of the tags of tools."""
        names = "|".join(map(re.escape, self.tools.names))
        calls: list[Call] = []
        for match in re.finditer(rf"<({names})>(.*?)(</\1>|\Z)", text, re.DOTALL):
            name, inside, end = match.groups()
            first = self.tools.parameters(name)[:1]
            if not end:
                calls.append(MalformedCall(f"a <{name}> has no </{name}>"))
            elif first:
                calls.append(ToolCall(name, {first[0]: inside.strip()}))
            else:
                calls.append(ToolCall(name, {}))
        return calls

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Put the first argument of each into the tag of its tool."""
        return "".join(
            f"<{call.name}>{next(iter(call.arguments.values()), '')}</{call.name}>"
            for call in calls
        )

    def answer(self, results: Sequence[ToolResult]) -> str:
        """Put the answers into one tag each."""
        return "".join(f"<information>{_marked(result)}</information>" for result in results)


def _as_json(call: ToolCall, key: str) -> str:
    return json.dumps({"name": call.name, key: dict(call.arguments)}, ensure_ascii=False)


def _of_json(text: str, key: str) -> Call:
    try:
        return _of_value(json.loads(text), key)
    except _NO_JSON as error:
        return MalformedCall(f"the tool call is no JSON ({error}): {_short(text)}")


def _of_value(value: Any, key: str) -> Call:
    """Read a call; `key` is the usual name of its arguments."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return MalformedCall(
            f'a tool call has a "name" and "{key}", not {_short(json.dumps(value))}'
        )
    arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except _NO_JSON:
            return MalformedCall(f'"{key}" is no JSON: {_short(arguments)}')
    if not isinstance(arguments, Mapping):
        return MalformedCall(f'"{key}" must be an object, not {_short(json.dumps(arguments))}')
    return ToolCall(value["name"], dict(arguments))


def _marked(result: ToolResult) -> str:
    return f"error: {result.text}" if result.error else result.text


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def register_parser(name: str, cls: type[ToolParser], *, replaces: bool = False) -> None:
    """Register a format of tool calls for `agentloop.parser`.

    Args:
        name: What the user writes; case does not matter.
        cls: A `ToolParser`.
        replaces: Take the place of whoever has the name.

    Raises:
        ValueError: The name is taken, or the class cannot be used as parsers are.
    """
    check_call(f"tool parser '{name}'", cls, Signature(("tools",)))
    check_method(f"tool parser '{name}'", cls, "parse", Signature(("text",)))
    parser_registry.register(name, cls, replaces=replaces)


register_parser("qwen", QwenParser)
register_parser("llama_json", LlamaParser)
register_parser("searchr1", TagParser)
