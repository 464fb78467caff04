"""The process of a check, such as `assert solve(1) == 2`, which has only proxies of a program.

The rules, closed by default:

- A name that the check uses and does not define is the program's. Built-in names are Python's own,
  and so are modules of the standard library that are used as `module.name`: a program cannot put
  its own in their place.
- What the program gives is a plain value, or an object that stays there. Such an object can be
  called, asked for attributes and items, iterated, and turned into a text; each of these gives a
  value again. Whether it equals something, or is true, is not for the program to say: that is
  refused.
- Arguments are copied: what a program changes in them is not seen here.
- Functions and objects of the check cannot be given to the program.
- A check that never asks the program for a value proves nothing, and is refused.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import symtable
import sys
from collections.abc import Iterator
from typing import Any

from rlinf.utils.sandbox import inside, values


class ProgramError(Exception):
    """The program raised an exception of its own type."""


class _Refused(BaseException):
    """The check does what cannot be judged."""


def work(check: str) -> int:
    """Run a check and send its verdict; return the exit code."""
    # What a check prints is for nobody.
    silent = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = sys.stderr = open(silent, "w")
    channel = _Channel()
    verdict, why = _run(check, channel)
    if channel.refused:
        # The check may have caught it.
        verdict, why = "refused", channel.refused
    inside.send(values.encode({"verdict": verdict, "why": why[:1000]}))
    return 0


def _run(check: str, channel: _Channel) -> tuple[str, str]:
    try:
        names, modules = foreign_names(check)
    except SyntaxError as error:
        return "refused", f"it is not Python: {error}"
    if not names:
        return "refused", "it uses no name of the program (built-in names are Python's own)"
    namespace: dict[str, Any] = {"__name__": "check"}
    try:
        namespace |= {name: importlib.import_module(name) for name in modules}
        for name in names:
            try:
                namespace[name] = channel.ask("get", name=name)
            except KeyError:
                # Python says so where the name is used.
                pass
        exec(compile(check, "check.py", "exec"), namespace)
    except _Refused as error:
        return "refused", str(error)
    except BaseException as error:
        if isinstance(error, ImportError) and error is not channel.raised:
            return "refused", f"{error}; a check can import installed packages only"
        return "failed", f"{type(error).__name__}: {error}"
    if not channel.asked:
        return "refused", "it never asks the program for a value"
    return "passed", ""


def foreign_names(check: str) -> tuple[list[str], list[str]]:
    """Return the names that a check takes from the program, and those of standard modules.

    Raises:
        SyntaxError: It is not Python.
    """
    top = symtable.symtable(check, "check.py", "exec")
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    used = {name for table in _tables(top) for name in _globals(table)} - own
    used -= {name for name in used if hasattr(builtins, name) or name == "__name__"}
    nodes = list(ast.walk(ast.parse(check)))
    with_dot = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    alone = {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in with_dot}
    modules = {name for name in used - alone if name in sys.stdlib_module_names}
    return sorted(used - modules), sorted(modules)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from _tables(inner)


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            yield symbol.get_name()


class _Channel:
    """Asks the program.

    Attributes:
        asked: whether it has given more than its objects.
        raised: the last exception of the program.
        refused: what of the check cannot be judged, if anything.
    """

    def __init__(self) -> None:
        self.asked = False
        self.raised: Exception | None = None
        self.refused = ""

    def ask(self, kind: str, **request: Any) -> Any:
        """Ask for something and wait for it; exceptions of the program are raised here."""
        try:
            frame = values.encode({"do": kind, **request}, _number)
        except values.BadValue as error:
            raise self.refuse(f"what it gives to the program {error}") from None
        inside.send(frame)
        reply = inside.receive()
        if reply is None:
            os._exit(1)
        told = values.decode(reply, lambda number: ProgramObject(self, number))
        if kind != "get" or not isinstance(told.get("value"), ProgramObject):
            self.asked = True
        if "raised" in told:
            self.raised = _exception(*told["raised"])
            raise self.raised
        return told["value"]

    def refuse(self, why: str) -> _Refused:
        """Return what ends the check; it is remembered."""
        self.refused = self.refused or why
        return _Refused(why)


class ProgramObject:
    """An object that stays in the program's process."""

    __slots__ = ("_channel", "_number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, channel: _Channel, number: int):
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it there."""
        return self._ask("call", arguments=list(arguments), keywords=keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name=name, value=value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key=key)

    def __len__(self) -> int:
        return self._ask("length")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ask("items"))

    def __str__(self) -> str:
        return self._ask("text")

    __repr__ = __str__

    def _ask(self, kind: str, **request: Any) -> Any:
        return self._channel.ask(kind, object=self, **request)


def _not_for_the_program(name: str) -> Any:
    def refuse(self: ProgramObject, *others: Any) -> Any:
        raise self._channel.refuse(
            f"it asks an object of the program for {name}; compare plain values instead, such as "
            "what one of its methods returns"
        )

    return refuse


# `x in thing` iterates, so that items are compared here.
for _name in "eq ne lt le gt ge bool".split():
    setattr(ProgramObject, f"__{_name}__", _not_for_the_program(f"__{_name}__"))


def _number(thing: Any) -> int:
    if isinstance(thing, ProgramObject):
        return thing._number
    raise values.BadValue(f"has type {type(thing).__name__}, which stays with the check")


def _exception(name: Any, text: Any) -> Exception:
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return ProgramError(f"{name}: {text}")
