"""What a tool is: a typed Python function, with a schema that the model is told."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rlinf.config.plugin_table import PluginTable

Function = Callable[..., Any]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PARAMETER = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


tool_registry: PluginTable[Tool] = PluginTable(
    "tool",
    {
        "calculator": "rlinf.agents.tools.calculator",
        "lookup": "rlinf.agents.tools.lookup",
    },
)
"""Tools by the names that the config uses."""


class ToolError(Exception):
    """What a tool cannot do; the model reads the message and may try something else."""


@dataclass(frozen=True)
class Rewarded:
    """What a tool returns if it also says what the call was worth.

    Attributes:
        value: the answer, as if it was returned alone.
        reward: what the turn that made the call is given, beside the reward of the episode.
    """

    value: Any
    reward: float


class Tool:
    """A function that a model may call.

    Args:
        function: typed, plain or `async`; its docstring says what it does.
        name: what the model calls it; None is the name of the function.
        inline: whether a plain function is called at once, in the thread that serves all episodes:
            right for what takes microseconds. Others are called in threads of their own.

    Attributes:
        name: what the model calls it.
        description: what it does.
        parameters: names of its parameters, in their order.

    Raises:
        ValueError: the function cannot be a tool; says why.
    """

    def __init__(self, function: Function, name: str | None = None, inline: bool = False) -> None:
        self.function = function
        self.name = name or function.__name__
        self.inline = inline
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"a tool is named {self.name!r}; names are letters, digits, '_' and '-', and begin "
                "with a letter"
            )
        self.description, about = _documentation(function)
        if not self.description:
            raise ValueError(
                f"the tool '{self.name}' has no docstring, so no model could know what it does; "
                "write one"
            )
        self._model = _model_of(function, self.name, about)
        self.parameters = tuple(self._model.model_fields)

    @property
    def is_async(self) -> bool:
        """Whether the function is `async`."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def schema(self) -> dict[str, Any]:
        """Name, description and parameters as chat templates take them."""
        parameters = self._model.model_json_schema()
        for key in ("title", "additionalProperties"):
            parameters.pop(key, None)
        for each in parameters.get("properties", {}).values():
            each.pop("title", None)
        parameters.setdefault("properties", {})
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as the function takes them.

        Raises:
            ToolError: one is missing, unknown or of another type.
        """
        try:
            found = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(f"{self.name}: {_said(error, self.parameters)}") from error
        return {name: getattr(found, name) for name in self.parameters}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Function) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, inline: bool = False, replaces: bool = False
) -> Callable[[Function], Tool]: ...


def tool(
    function: Function | None = None,
    *,
    name: str | None = None,
    inline: bool = False,
    replaces: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Make a function a tool that `agentloop.tools` can name; with or without arguments.

    Args:
        function: the function.
        name: see `Tool`.
        inline: see `Tool`.
        replaces: take the place of whoever has the name.

    Raises:
        ValueError: the function cannot be a tool, or the name is taken.
    """

    def register(function: Function) -> Tool:
        made = Tool(function, name, inline)
        made.__module__ = function.__module__
        tool_registry.register(made.name, made, replaces=replaces)
        return made

    return register if function is None else register(function)


def _model_of(function: Function, name: str, about: Mapping[str, str]) -> type[BaseModel]:
    """Return a model of the parameters of a function."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(
                f"the tool '{name}' takes '{parameter}', which no model can be told of; name its "
                "parameters"
            )
        if parameter.name not in hints:
            raise ValueError(
                f"the parameter '{parameter.name}' of the tool '{name}' has no type; write one, "
                "such as str, int or list[float]"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        field = Field(default, description=about.get(parameter.name))
        fields[parameter.name] = (hints[parameter.name], field)
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _documentation(function: Function) -> tuple[str, dict[str, str]]:
    """Return what a Google-style docstring says of a function, and of its parameters."""
    text = inspect.getdoc(function) or ""
    summary, _, rest = text.partition("\nArgs:\n")
    about: dict[str, str] = {}
    last = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        found = _PARAMETER.match(line)
        if found and len(line) - len(line.lstrip()) <= 4:
            last = found[1]
            about[last] = found[2].strip()
        elif last and line.strip():
            about[last] += f" {line.strip()}"
    description = re.split(r"\n(?:Returns|Raises|Yields):\n", summary)[0]
    return " ".join(description.split()), about


def _said(error: ValidationError, known: tuple[str, ...]) -> str:
    """Say what is wrong with arguments, in a line that a model can act on."""
    found = []
    for each in error.errors():
        place = ".".join(map(str, each["loc"]))
        if each["type"] == "missing":
            found.append(f"the argument {place!r} is missing")
        elif each["type"] == "extra_forbidden":
            found.append(f"there is no argument {place!r}, only {', '.join(known) or 'none'}")
        else:
            found.append(f"{place!r}: {each['msg'][:1].lower()}{each['msg'][1:]}")
    return "; ".join(found)
