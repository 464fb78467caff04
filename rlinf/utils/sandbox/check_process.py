"""The process of a check, such as `assert solve(1) == 2`, which has only proxies of a program.

The rules, closed by default:

- A name that the check uses and does not define is the program's. Built-in names are Python's own,
  and so are modules that are used as `module.name`: a program cannot put its own in their place.
  Names that compare values, such as `isclose`, have to be imported (`check_names`).
- What the program gives is a plain value, or an object that stays there. Such an object can be
  called, asked for attributes and items, iterated, and turned into a text; each of these gives a
  value again. Whether it equals something, or is true, is not for the program to say: that is
  refused. So is an object with another length than it has items.
- Arguments are copied: what a program changes in them is not seen here.
- Functions and objects of the check cannot be given to the program.
- A check that never asks the program for a value proves nothing, and is refused.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from rlinf.utils.sandbox import inside, values
from rlinf.utils.sandbox.check_names import foreign_names, helpers_of_program


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
    if helpers := helpers_of_program(check, names):
        return "refused", f"it takes {', '.join(helpers)} from the program: import it in the check"
    own = _Builtins(names, lambda name: channel.ask("get", name=name))
    namespace: dict[str, Any] = {"__name__": "check", "__builtins__": own}
    try:
        namespace |= {name: importlib.import_module(module) for name, module in modules.items()}
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


class _Builtins(dict[str, Any]):
    """Built-in names, and after them those of the program, each asked for when it is first used.

    A name that no code of the check uses is no question to the program.
    """

    def __init__(self, names: Collection[str], ask: Callable[[str], Any]):
        super().__init__(vars(builtins))
        self._names, self._ask = names, ask

    def __missing__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        # Python makes a NameError of a KeyError of the program.
        self[name] = self._ask(name)
        return self[name]


_CHANGING = ("call", "attribute", "set")
"""Requests after which an object of the program may have other items."""


class _Channel:
    """Asks the program.

    Attributes:
        asked: whether it has given more than its objects.
        calls: how often it was asked for what may change its objects.
        raised: the last exception of the program.
        refused: what of the check cannot be judged, if anything.
    """

    def __init__(self) -> None:
        self.asked = False
        self.calls = 0
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
        if kind != "get" or ("value" in told and not isinstance(told["value"], ProgramObject)):
            self.asked = True
        self.calls += kind in _CHANGING
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

    __slots__ = ("_channel", "_number", "_seen")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, channel: _Channel, number: int):
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_seen", None)

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
        length, _ = self._look()
        if length is None:
            raise TypeError("this object of the program has no length")
        return length

    def __iter__(self) -> Iterator[Any]:
        length, items = self._look()
        if length is None:
            # Such as a generator, whose items are there once.
            return iter(self._ask("items"))
        if items is None:
            raise TypeError("this object of the program cannot be iterated")
        return iter(items)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(list(self))

    def __str__(self) -> str:
        return self._ask("text")

    __repr__ = __str__

    def _ask(self, kind: str, **request: Any) -> Any:
        return self._channel.ask(kind, object=self, **request)

    def _look(self) -> tuple[int | None, list[Any] | None]:
        """Return its length and, if it has one, its items; None for what it does not have.

        They belong together, and stay until the program is asked for more: a length that is right,
        and other items for a loop to compare, would be a lie.
        """
        if self._seen is None or self._seen[0] != self._channel.calls:
            length = self._plain("length", int)
            items = None if length is None else self._plain("items", list)
            if items is not None and len(items) != length:
                raise self._channel.refuse(
                    f"an object of the program has length {length} and {len(items)} items"
                )
            object.__setattr__(self, "_seen", (self._channel.calls, length, items))
        return self._seen[1:]

    def _plain(self, kind: str, wanted: type) -> Any:
        """Return what the object says of itself; None if it has no such thing."""
        try:
            told = self._ask(kind)
        except TypeError:
            return None
        return told if type(told) is wanted else None


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
    # These two would end a loop of the check, such as `all(map(...))`, as if all were well.
    ends_loops = kind in (StopIteration, StopAsyncIteration)
    if isinstance(kind, type) and issubclass(kind, Exception) and not ends_loops:
        try:
            return kind(text)
        except TypeError:
            pass
    return ProgramError(f"{name}: {text}")
