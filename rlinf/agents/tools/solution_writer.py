"""Writes the tool calls of worked solutions, and their answers, in the format of a parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf.agents.tools.parsers import ToolParser, parser_registry
from rlinf.agents.tools.toolbox import Toolbox, ToolCall, ToolResult


class SolutionWriter:
    """Writes what a model and its tools would have written in an episode.

    The parser is made when there is something to write.

    Args:
        parser: What `agentloop.parser` names.
    """

    def __init__(self, parser: str) -> None:
        self._name = parser
        self._parser: ToolParser | None = None

    @property
    def inline(self) -> bool:
        """Whether answers are part of the text of the model; see `ToolParser`."""
        return parser_registry.lookup(self._name).inline

    def calls(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return the text by which a model makes some calls.

        Args:
            calls: Pairs of a name and its arguments.

        Raises:
            ValueError: The parser cannot write calls.
        """
        return self._in_format("write", [ToolCall(*call) for call in calls])

    def answers(self, answers: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the messages by which tools answer: one for all of them if inline, or one each.

        Args:
            answers: Pairs of a name and a text.

        Raises:
            ValueError: The parser cannot write answers.
        """
        results = [ToolResult(*answer) for answer in answers]
        if self.inline:
            return [{"role": "tool", "content": self._in_format("answer", results)}]
        return self._in_format("messages", results)

    def _in_format(self, method: str, what: list[Any]) -> Any:
        """Return what a method of the parser makes of calls or answers.

        Raises:
            ValueError: The parser has no such method.
        """
        if self._parser is None:
            self._parser = parser_registry.lookup(self._name)(Toolbox([]))
        try:
            # One that was registered need not be a subclass of `ToolParser`.
            if not hasattr(self._parser, method):
                raise NotImplementedError
            return getattr(self._parser, method)(what)
        except NotImplementedError as error:
            raise ValueError(
                f"a worked solution calls tools, and agentloop.parser '{self._name}' has no "
                f"method `{method}` that would write them in its format; add the method, use "
                "another parser, or data without calls"
            ) from error
