"""A table of plug-ins by name: built-in ones are imported at first use, new ones are registered."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlinf.config.plugins import known_names, register_schema
from rlinf.config.signatures import check_arguments
from rlinf.config.suggest import did_you_mean, how_to_register, listed

if TYPE_CHECKING:
    from pydantic import BaseModel

Item = TypeVar("Item")


class PluginTable(Mapping[str, Item], Generic[Item]):
    """Maps names, whose case does not matter, to functions or classes.

    Args:
        kind: What the table holds, one of the kinds of `rlinf.config.plugins`.
        builtin: For each built-in name the module that defines and registers it when imported.
    """

    def __init__(self, kind: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self._builtin = {name.lower(): module for name, module in builtin.items()}
        self._items: dict[str, Item] = {}

    def register(
        self,
        name: str,
        item: Item,
        *,
        schema: type[BaseModel] | None = None,
        replaces: bool = False,
    ) -> bool:
        """Add a plug-in, and its name to those that the config accepts.

        Args:
            name: What the user writes in the config.
            item: The function or class.
            schema: A pydantic model of keys that the plug-in adds to its config section.
            replaces: Take the place of whoever has the name, now or later.

        Returns:
            Whether the table now holds `item`: false only for a built-in that was replaced before
            its module was imported.

        Raises:
            ValueError: The name is taken by something else.
        """
        key = name.lower()
        module = getattr(item, "__module__", None)
        is_builtin = key in self._builtin and self._builtin[key] == module
        taken = key in self._items or (key in self._builtin and not is_builtin)
        if taken and not replaces and self._items.get(key) is not item:
            if is_builtin:
                return False
            raise ValueError(
                f"{self.kind} '{name}' is registered already; choose another name, "
                "or pass replaces=True to take its place"
            )
        if schema is not None or key not in known_names(self.kind):
            register_schema(self.kind, key, schema, replaces=replaces)
        self._items[key] = item
        return True

    def lookup(self, name: str) -> Item:
        """Return the plug-in of this name.

        Raises:
            ValueError: Nobody registered the name; the message has the near and the known ones.
        """
        key = str(name).lower()
        if key not in self._items and key in self._builtin:
            importlib.import_module(self._builtin[key])
        if key not in self._items:
            hint = did_you_mean(name, self)
            raise ValueError(
                f"no {self.kind} is registered under the name '{name}'; "
                f"{hint + ' ' if hint else ''}known: {listed(self)}; {how_to_register(self.kind)}"
            )
        return self._items[key]

    def load_builtin(self) -> None:
        """Import the modules of all built-in plug-ins."""
        for module in dict.fromkeys(self._builtin.values()):
            importlib.import_module(module)

    def __getitem__(self, name: str) -> Item:
        if name not in self:
            raise KeyError(name)
        return self.lookup(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in {*self._items, *self._builtin}

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._items, *self._builtin}))

    def __len__(self) -> int:
        return len({*self._items, *self._builtin})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}: {listed(self)})"


class FunctionTable(PluginTable[Callable[..., Any]]):
    """A table of functions that take what they name of the keyword arguments offered to all.

    One caller serves every function: it offers all it has, and a function that names few of the
    arguments is not burdened with the others. An argument that no function names is a mistake of
    the caller and raises.

    Args:
        kind: As for `PluginTable`.
        builtin: Likewise.
        offers: Returns the names of the arguments that callers offer besides keys of a function's
            own schema. A new function that needs others is refused; None takes any.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str],
        offers: Callable[[], Collection[str]] | None = None,
    ) -> None:
        super().__init__(kind, builtin)
        self._offers = offers
        self._arguments: dict[str, frozenset[str] | None] = {}

    def register_function(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        forwards: tuple[Callable[..., Any], ...] = (),
        schema: type[BaseModel] | None = None,
        replaces: bool = False,
    ) -> bool:
        """Add a function; `forwards` are those that get its `**kwargs`. As `register`.

        Raises:
            ValueError: The name is taken, or the function needs an argument that nobody offers.
        """
        is_builtin = self._builtin.get(name.lower()) == getattr(function, "__module__", None)
        if self._offers is not None and not is_builtin:
            keys = () if schema is None else schema.model_fields
            remedy = "give it a default, or make it a key of the config with schema="
            offered = {*self._offers(), *keys}
            check_arguments(f"{self.kind} '{name}'", function, offered, remedy)
        added = self.register(name, function, schema=schema, replaces=replaces)
        if added:
            self._arguments[name.lower()] = named_arguments(function, forwards)
        return added

    def arguments(self, name: str) -> frozenset[str]:
        """Return the arguments a function names; with a bare `**kwargs`, all that any names."""
        self.lookup(name)
        named = self._arguments[str(name).lower()]
        return self._vocabulary() if named is None else named

    def call(self, name: str, offered: Mapping[str, Any]) -> Any:
        """Call the function `name` with what it takes of `offered`.

        Raises:
            ValueError: Nobody registered the name.
            TypeError: No function of the table has such an argument, or a needed one is missing.
        """
        function = self.lookup(name)
        named = self._arguments[str(name).lower()]
        if named is None:
            return function(**offered)
        unknown = [key for key in offered if key not in named]
        if unknown:
            vocabulary = self._vocabulary()
            for key in unknown:
                if key not in vocabulary:
                    hint = did_you_mean(key, vocabulary)
                    raise TypeError(f"no {self.kind} has an argument '{key}'; {hint}".rstrip("; "))
        return function(**{key: value for key, value in offered.items() if key in named})

    def _vocabulary(self) -> frozenset[str]:
        self.load_builtin()
        return frozenset().union(*(named for named in self._arguments.values() if named))


def named_arguments(
    function: Callable[..., Any], forwards: Iterable[Callable[..., Any]] = ()
) -> frozenset[str] | None:
    """Return the keyword arguments of a function and of those that get its `**kwargs`.

    Returns:
        Their names, or None when the function takes anything.
    """
    names: set[str] = set()
    takes_all = False
    for each in (function, *forwards):
        for parameter in inspect.signature(each).parameters.values():
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.add(parameter.name)
            takes_all |= parameter.kind is parameter.VAR_KEYWORD
    return None if takes_all and not forwards else frozenset(names)
