"""Tool calls in the text of a model, as clients read them."""

from __future__ import annotations

import json
import secrets
from typing import Any

from rlinf.agents.tools.parsers import LlamaParser, QwenParser, ToolParser, parser_registry
from rlinf.agents.tools.toolbox import MalformedCall, Toolbox

_MARK = "<tool_call>"


class ToolReader:
    """Splits what a model wrote into text and calls.

    Args:
        parser: Name of the format; see `agentloop.parser`.

    Raises:
        ValueError: There is no such format, or its calls are answered within the text.
    """

    def __init__(self, parser: str) -> None:
        kind = parser_registry.lookup(parser)
        if kind.inline:
            raise ValueError(
                f"tool calls of the format {parser} are answered within the text, which no message "
                "of a client can be; use qwen or llama_json"
            )
        self._parser: ToolParser = kind(Toolbox([]))

    def shown(self, text: str) -> int:
        """Return how many characters of a growing text are certainly not part of a call."""
        if isinstance(self._parser, QwenParser):
            end = text.find(_MARK)
            if end < 0:
                ends = range(len(_MARK) - 1, 0, -1)
                end = len(text) - next((n for n in ends if text.endswith(_MARK[:n])), 0)
            # Blanks before a call are no part of the text, and one may follow.
            return len(text[:end].rstrip())
        if isinstance(self._parser, LlamaParser):
            return len(text) if text.strip() and not text.strip().startswith("{") else 0
        return 0

    def split(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Return text and calls of a whole response; calls that cannot be read are text."""
        calls = self._parser.parse(text)
        if not calls or any(isinstance(call, MalformedCall) for call in calls):
            return text, []
        found = [
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in calls
        ]
        return text[: self.shown(text)], found
