"""The program's process: runs a program, then calls its functions for those outside.

Nothing here is safe from the program, which can change all of it. It need not be: what decides is
elsewhere, and all that leaves this process is taken for a claim.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Mapping
from typing import Any

from rlinf.utils.sandbox import inside, values

_MOST_ITEMS = 100_000
"""Most items of an iterable that are sent outside."""


def work(code: str, question: Mapping[str, Any]) -> int:
    """Run a program and answer requests; return the exit code.

    Args:
        code: The program.
        question: `serve`: answer requests after the program; `objects`: objects of the program may
            be referred to, and exceptions are told.
    """
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True
    )
    sys.argv = ["program.py"]
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(code, "program.py", "exec"), names)
        if question.get("serve"):
            _Server(names, question["objects"]).serve()
        inside.finish()
        return 0
    except SystemExit as leaving:
        inside.finish()
        return _exit_code(leaving.code)
    except MemoryError:
        raise
    except BaseException:
        import traceback

        traceback.print_exc()
        inside.flush()
        return 1


class _Server:
    """Does what those outside ask for.

    Args:
        names: names of the program.
        objects: keep objects that are not values, and send their numbers.
    """

    def __init__(self, names: dict[str, Any], objects: bool):
        self._names = names
        self._objects: list[Any] | None = [] if objects else None

    def serve(self) -> None:
        """Answer requests until they end."""
        inside.send(values.encode({"ready": True}))
        while (frame := inside.receive()) is not None:
            if self._objects is None:
                answer = {"value": self._do(values.decode(frame))}
                inside.send(values.encode(answer))
                continue
            try:
                answer = {"value": self._do(values.decode(frame, self._objects.__getitem__))}
                reply = values.encode(answer, self._refer)
            except MemoryError:
                raise
            except Exception as error:
                reply = values.encode({"raised": [type(error).__name__, str(error)[:1000]]})
            inside.send(reply)

    def _refer(self, thing: Any) -> int:
        assert self._objects is not None
        self._objects.append(thing)
        return len(self._objects) - 1

    def _do(self, request: Mapping[str, Any]) -> Any:
        kind = request["do"]
        if kind == "function":
            return self._function(request["name"])(*request["arguments"])
        if kind == "get":
            return self._names[request["name"]]
        thing = request["object"]
        if kind == "call":
            return thing(*request["arguments"], **request["keywords"])
        if kind == "attribute":
            return getattr(thing, request["name"])
        if kind == "set":
            return setattr(thing, request["name"], request["value"])
        if kind == "item":
            return thing[request["key"]]
        if kind == "length":
            return len(thing)
        if kind == "text":
            return str(thing)
        if kind == "items":
            items = list(itertools.islice(thing, _MOST_ITEMS + 1))
            if len(items) > _MOST_ITEMS:
                raise ValueError(f"more than {_MOST_ITEMS} items")
            return items
        raise ValueError(kind)

    def _function(self, name: str) -> Any:
        if "Solution" in self._names and hasattr(self._names["Solution"], name):
            return getattr(self._names["Solution"](), name)
        return self._names[name]


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    inside.flush()
    return 1
