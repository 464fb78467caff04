"""Checks, where functions and classes are registered, that they can be called as they will be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rlinf.config.suggest import did_you_mean, listed


@dataclass(frozen=True)
class Call:
    """How something is called.

    Attributes:
        positional: names of the arguments that are given by position.
        keywords: names of those that are given by name.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as a signature."""
        star = ("*",) if self.keywords else ()
        return f"({', '.join((*self.positional, *star, *self.keywords))})"


def check_call(what: str, function: Any, *calls: Call) -> None:
    """Check that something can be called in one of some ways; defaults and `**kwargs` count.

    Args:
        what: what it is, for the message, such as `reward 'brevity'`.
        function: a function or a class.
        *calls: the ways.

    Raises:
        ValueError: it cannot; says what it must take, and what it takes.
    """
    if not callable(function):
        raise ValueError(f"{what} must take {_either(calls)}, but is {function!r}, no function")
    _check(what, _signature(function), calls, skip=0)


def check_method(what: str, cls: Any, name: str, *calls: Call) -> None:
    """Check that a class has a method that can be called in one of some ways; as `check_call`.

    Args:
        what: what the class is.
        cls: the class; anything else passes, as nothing is known of what it makes.
        name: of the method.
        *calls: the ways, without `self`.
    """
    if not inspect.isclass(cls):
        return
    given = inspect.getattr_static(cls, name, None)
    if given is None or not callable(getattr(cls, name)):
        said = f"{what} must have a method {name}{_either(calls)}"
        raise ValueError(f"{said}; the class {cls.__name__} has none")
    bound = isinstance(given, (staticmethod, classmethod))
    _check(f"{what}: {name}", _signature(getattr(cls, name)), calls, skip=0 if bound else 1)


def check_arguments(what: str, function: Any, offered: Collection[str], remedy: str) -> None:
    """Check a function that is called with what it names of some keyword arguments.

    Args:
        what: what it is, for the message.
        function: the function.
        offered: names of the arguments.
        remedy: how to have further ones.

    Raises:
        ValueError: it needs an argument that is not offered, or takes one by position only.
    """
    if not callable(function):
        raise ValueError(f"{what} must be a function, but is {function!r}")
    signature = _signature(function)
    if signature is None:
        return
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            said = f"'{parameter.name}' cannot be given by name; leave the / out"
        elif parameter.name not in offered:
            meant = did_you_mean(parameter.name, offered)
            said = f"there is no '{parameter.name}'; {f'{meant} ' if meant else ''}{remedy}"
        else:
            continue
        raise ValueError(
            f"{what} must take keyword arguments out of: {listed(offered)}; but it takes "
            f"{signature}: {said}"
        )


def check_accepts(what: str, function: Any, keywords: Collection[str]) -> None:
    """Check that a function or class accepts some keyword arguments, whatever else it needs.

    Raises:
        ValueError: it does not; says what it must take, and what it takes.
    """
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind_partial(**dict.fromkeys(keywords))
    except TypeError as error:
        wanted = Call((), tuple(keywords))
        said = f"must take {wanted}, the keys of its schema, but takes {signature}: {error}"
        raise ValueError(f"{what} {said}") from None


def _check(
    what: str, signature: inspect.Signature | None, calls: tuple[Call, ...], skip: int
) -> None:
    if signature is None:
        return
    first = (None,) * skip
    for call in calls:
        try:
            signature.bind(*first, *call.positional, **dict.fromkeys(call.keywords))
            return
        except TypeError as error:
            why = str(error)
    parameters = list(signature.parameters.values())
    # `self` is of no interest, unless it is what was forgotten.
    shown = signature.replace(parameters=parameters[skip:]) if len(parameters) > 1 else signature
    raise ValueError(f"{what} must take {_either(calls)}, but takes {shown}: {why}")


def _either(calls: tuple[Call, ...]) -> str:
    return " or ".join(map(str, calls))


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a signature; None for what is not written in Python and has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
