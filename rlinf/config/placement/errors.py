"""How a mistake in a placement is shown: the text, a caret under the place, what is allowed."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int]
"""Start and end (exclusive) of a place in a text."""


class PlacementError(ValueError):
    """A mistake in ``cluster.component_placement`` or ``cluster.node_groups``.

    Attributes:
        path: Key path of the mistake, such as ``cluster.component_placement.actor``.
        problem: What is wrong, in one phrase.
        text: What the user wrote, or ``""`` when there is no text to point into.
        span: The place in ``text`` that is wrong; ``None`` means all of it.
        allowed: What would have been right.
        fix: What to do.
        others: Further mistakes found in the same check.
    """

    def __init__(
        self,
        path: str,
        problem: str,
        text: str = "",
        span: Span | None = None,
        allowed: str = "",
        fix: str = "",
    ) -> None:
        """Keep the parts of the message; see the class for their meaning."""
        # All parts go to args so that the error survives pickling between processes.
        super().__init__(path, problem, text, span, allowed, fix)
        self.path = path
        self.problem = problem
        self.text = text
        self.span = span
        self.allowed = allowed
        self.fix = fix
        self.others: tuple[PlacementError, ...] = ()

    @property
    def errors(self) -> tuple[PlacementError, ...]:
        """This mistake and the others found with it."""
        return (self, *self.others)

    @property
    def message(self) -> str:
        """The message of this mistake alone."""
        lines = [f"{self.path}: {self.problem}"]
        if self.text:
            start, end = self.span or (0, len(self.text))
            # Wide characters take two columns in a terminal; the caret must still meet them.
            pad = _columns(self.text[:start])
            carets = max(1, _columns(self.text[start:end]))
            lines.append("    " + "".join(c if c.isprintable() else " " for c in self.text))
            lines.append("    " + " " * pad + "^" * carets)
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the messages of this mistake and the others."""
        return "\n\n".join(error.message for error in self.errors)


@dataclass(frozen=True)
class Source:
    """A text the user wrote, and where; makes the errors that point into it."""

    path: str
    text: str

    def error(
        self, problem: str, span: Span | None = None, allowed: str = "", fix: str = ""
    ) -> PlacementError:
        """Return an error at ``span`` of this text."""
        return PlacementError(self.path, problem, self.text, span, allowed, fix)


def raise_all(errors: Iterable[PlacementError]) -> None:
    """Raise the given mistakes as one error; do nothing when there are none."""
    unique = list({error.message: error for error in errors}.values())
    if unique:
        unique[0].others = tuple(unique[1:])
        raise unique[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a phrase that names the nearest known name, or ``""`` when none is near."""
    near = difflib.get_close_matches(name, [str(k) for k in known], n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def show_yaml(value: object) -> str:
    """Return a value as the user probably wrote it in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
