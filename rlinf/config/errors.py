"""What is wrong with a configuration, said once for every mistake in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class _Absent:
    """Marks a problem that has no value to show, such as a missing key."""

    def __repr__(self) -> str:
        return "(not set)"

    def __reduce__(self) -> tuple:
        return (_absent, ())


ABSENT = _Absent()


def _absent() -> _Absent:
    return ABSENT


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        path: Dotted key path, such as `actor.optim.lr`; empty for the config as a whole.
        value: What the user gave, or `ABSENT`.
        message: What is wrong and what is allowed.
        hint: What to do about it; may be empty.
    """

    path: str
    value: Any
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """Return the block of lines that a user sees."""
        head = self.path or "config"
        if self.value is not ABSENT:
            head += f" = {show(self.value)}"
        lines = [head, *_indent(self.message)]
        if self.hint:
            lines += _indent(self.hint)
        return "\n".join(lines)


class ConfigError(ValueError):
    """A configuration cannot be used; holds every problem that was found.

    Attributes:
        problems: Everything that was found.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Keep the problems and write them into one message."""
        self.problems = list(problems)
        super().__init__(self._message())

    def _message(self) -> str:
        count = len(self.problems)
        head = "The config has 1 problem:" if count == 1 else f"The config has {count} problems:"
        return "\n\n".join([head, *(str(problem) for problem in self.problems)])

    def __reduce__(self) -> tuple:
        """Keep the problems when the error is sent to another process."""
        return (type(self), (self.problems,))


def show(value: Any, limit: int = 80) -> str:
    """Write a config value as YAML would, cut to `limit` characters.

    Args:
        value: Plain data.
        limit: Longest text to return.

    Returns:
        The text.
    """
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(show(item) for item in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
