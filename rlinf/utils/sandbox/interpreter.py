"""The process of an interpreter: runs pieces of code one after the other, and keeps their names.

Nothing here is safe from the code that it runs, and need not be: what leaves this process is a text
for whoever wrote the code. Files are kept in the memory of the process, within its limit; those of
the machine cannot be written.
"""

from __future__ import annotations

import ast
import io
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from rlinf.utils.sandbox import inside, values
from rlinf.utils.sandbox.memory_files import MemoryFiles

_NAME = "<code>"


def work(question: Mapping[str, Any]) -> int:
    """Run what is asked for until there is no more; return the exit code.

    Args:
        question: `characters`: most that is kept of what one piece of code prints.
    """
    sys.stdin = sys.__stdin__ = io.StringIO()
    files = MemoryFiles()
    files.install()
    names: dict[str, Any] = {"__name__": "__main__"}
    inside.send(values.encode({"ready": True}))
    while (frame := inside.receive()) is not None:
        request = values.decode(frame)
        inside.send(values.encode(_run(request["code"], names, question["characters"])))
    return 0


def _run(code: str, names: dict[str, Any], most: int) -> dict[str, str]:
    """Run a piece of code; return what it printed, its last value, and its error."""
    printed = Printed(most)
    value, error = "", ""
    sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = printed
    try:
        tree = ast.parse(code, _NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, _NAME, "exec"), names)
        if last is not None:
            found = eval(compile(ast.Expression(last.value), _NAME, "eval"), names)
            value = "" if found is None else repr(found)[: most + 1]
    except BaseException as raised:
        error = _said(raised)
    return {"printed": printed.getvalue(), "value": value, "error": error[: most + 1]}


def _said(raised: BaseException) -> str:
    """Return the last line of a traceback, and where it was if the code has several lines."""
    try:
        said = "".join(traceback.format_exception_only(raised)).strip().splitlines()[-1]
        lines = [
            f.lineno for f in traceback.extract_tb(raised.__traceback__) if f.filename == _NAME
        ]
        if isinstance(raised, SyntaxError) and raised.filename == _NAME:
            lines = [raised.lineno]
        return f"{said} (line {lines[-1]})" if lines and (lines[-1] or 0) > 1 else said
    except BaseException:
        return "an error that cannot be told"


class Printed(io.StringIO):
    """Keeps the beginning of what is printed, and counts the rest.

    Args:
        most: characters that are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._room = most + 1

    def write(self, text: str) -> int:
        """Write a text, as far as there is room."""
        if self._room > 0:
            super().write(text[: self._room])
            self._room -= len(text)
        return len(text)
