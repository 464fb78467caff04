"""A table of what an env process makes by name: experts and gates, of one env type or of all."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.config.env_plugins import UnknownName, register_name, require_name
from rlinf.config.plugins import load_extension
from rlinf.config.signatures import Call, check_call, check_method


class TargetTable:
    """Maps names, whose case does not matter, to classes or functions that are called like them.

    Args:
        kind: What it holds, a kind of `rlinf.config.env_plugins`.
        builtin: By env type, empty for all of them, and name: a class, or the path of one as text,
            `package.module:name`.
        constructor: How a target is called.
        methods: How the methods of a class are called, by name.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[tuple[str, str], Any],
        constructor: Call,
        methods: Mapping[str, Call],
    ) -> None:
        self._kind, self._targets = kind, dict(builtin)
        self._constructor, self._methods = constructor, methods

    def register(
        self, name: str, target: Any = None, *, env_type: str = "", replaces: bool = False
    ) -> Callable[[Any], Any] | None:
        """Add a target, and its name to those that the config accepts.

        Args:
            name: What the user writes in the config.
            target: A class, a function that is called like one, or the path of either as text.
                None to use as a decorator.
            env_type: The env type that it is for; empty is all.
            replaces: Take the place of whoever has the name.

        Returns:
            A decorator if `target` is None.

        Raises:
            ValueError: The name is taken, or the target cannot be called as others are.
        """
        if target is None:

            def decorate(target: Any) -> Any:
                self.register(name, target, env_type=env_type, replaces=replaces)
                return target

            return decorate
        what, key = f"{self._kind} '{name}'", (env_type.lower(), name.lower())
        if not isinstance(target, str):
            check_call(what, target, self._constructor)
            for method, call in self._methods.items():
                check_method(what, target, method, call)
        known = self._targets.get(key)
        if known is not None and not replaces and _path(known) != _path(target):
            whose = f" of env type {env_type}" if env_type else ""
            raise ValueError(
                f"{what}{whose} is already {_path(known)}; choose another name, or pass "
                "replaces=True to take its place"
            )
        self._targets[key] = target
        register_name(self._kind, name, env_type)
        return None

    def lookup(self, name: str, env_type: str = "") -> Any:
        """Return the target of a name; one of the env type goes before one for all.

        Raises:
            ValueError: The env type has no such target; the message says which it has.
        """
        load_extension()
        try:
            require_name(self._kind, name, env_type)
        except UnknownName as error:
            raise ValueError(f"{self._kind} '{name}': {error}. {error.hint}") from None
        own = self._targets.get((env_type.lower(), name.lower()))
        target = own or self._targets["", name.lower()]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = getattr(importlib.import_module(module), attribute)
        return target


def _path(target: Any) -> str:
    # A module that is imported again defines its classes again.
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', target)}"
