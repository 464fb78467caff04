"""What a tool is: a typed Python function or class, with a schema that the model is told."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)

from rlinf.config.plugin_table import PluginTable

Function = Callable[..., Any]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PARAMETER = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


tool_registry: PluginTable[Tool] = PluginTable(
    "tool",
    {
        "calculator": "rlinf.agents.tools.calculator",
        "lookup": "rlinf.agents.tools.lookup",
        "python": "rlinf.agents.tools.interpreter",
        "search": "rlinf.agents.tools.search",
    },
)
"""Tools by the names that the config uses."""


RETRIES = 2
"""Further attempts at a call of an idempotent tool that did not answer."""


class ToolError(Exception):
    """What a tool cannot do; the model reads the message and may try something else."""


class ToolFailed(RuntimeError):
    """A tool did not answer: no fault of the policy, so that its episode does not count."""


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
    """A function that a model may call, or a class with a state for each episode.

    An instance of a class is made at the first call of an episode, and called for each. If it has a
    method `begin(metadata)`, that is told the metadata of the question first. Its `close`, plain or
    `async`, if it has one, is called when the episode ends, however it does.

    Args:
        function: typed, plain or `async`; its docstring says what it does. One that yields texts is
            read up to the longest answer. Of a class, `__call__` is the function, and the arguments
            of `__init__` are options that a config may give.
        name: what the model calls it; None is the name of the function, or that of the class in
            snake case.
        inline: whether a plain function is called at once, in the thread that serves all episodes:
            right for what takes microseconds. Others are called in threads of their own.
        timeout: seconds that a call may take; None is that of the run.
        concurrency: calls at a time; None is that of the run.
        idempotent: whether a call may be made again when it is not known what became of it.
        retries: further attempts at a call that did not answer; only of idempotent tools.

    Attributes:
        name: what the model calls it.
        description: what it does.
        parameters: names of its parameters, in their order.

    Raises:
        ValueError: the function cannot be a tool; says why.
    """

    def __init__(
        self,
        function: Function,
        name: str | None = None,
        inline: bool = False,
        *,
        timeout: float | None = None,
        concurrency: int | None = None,
        idempotent: bool = False,
        retries: int = RETRIES,
    ) -> None:
        self.function = function
        self.stateful = inspect.isclass(function)
        self.name = name or (_snake(function.__name__) if self.stateful else function.__name__)
        self.inline = inline
        self.timeout, self.concurrency = timeout, concurrency
        self.idempotent, self.retries = idempotent, retries
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"a tool is named {self.name!r}; names are letters, digits, '_' and '-', and begin "
                "with a letter"
            )
        called = _call_of(function, self.name) if self.stateful else function
        self._called = called
        self.description, about = _documentation(function, called)
        if not self.description:
            raise ValueError(
                f"the tool '{self.name}' has no docstring, so no model could know what it does; "
                "write one"
            )
        self._model = _model_of(called, self.name, about, bound=self.stateful)
        self.parameters = tuple(self._model.model_fields)
        self._returns = _returns(called)

    @property
    def is_async(self) -> bool:
        """Whether the function is `async`."""
        return inspect.iscoroutinefunction(self._called)

    @property
    def yields(self) -> bool:
        """Whether the function yields its answer in parts."""
        return inspect.isgeneratorfunction(self._called) or self.yields_async

    @property
    def yields_async(self) -> bool:
        """Whether it does so as an `async` one."""
        return inspect.isasyncgenfunction(self._called)

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

    def check(self, value: Any) -> None:
        """Check an answer against the type that the function says it returns.

        Raises:
            ToolFailed: it is of another type.
        """
        if self._returns is None:
            return
        try:
            self._returns.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ToolFailed(
                f"the tool '{self.name}' did not return what its signature says"
                f"{f' at {place}' if place else ''}: {first['msg']}, not "
                f"{type(first['input']).__name__}; correct the tool, or its return type"
            ) from error

    def open(self, options: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
        """Return a new instance of a class, to be called for an episode.

        Args:
            options: arguments of `__init__`; see `check_options`.
            metadata: of the question.
        """
        made = self.function(**options)
        if hasattr(made, "begin"):
            try:
                made.begin(metadata)
            except BaseException:
                if hasattr(made, "close") and not inspect.iscoroutinefunction(made.close):
                    made.close()
                raise
        return made

    def check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as a class takes them.

        Raises:
            ValueError: there is no such option, one is missing, or one is of another type.
        """
        if not self.stateful:
            if options:
                raise ValueError(
                    f"the tool '{self.name}' takes no options, not {', '.join(options)}: it is a "
                    "function; options are arguments of a class"
                )
            return {}
        makes = self.function.__init__
        if makes is object.__init__:
            makes = _no_options
        model = _model_of(makes, self.name, {}, bound=True)
        try:
            found = model.model_validate(dict(options))
        except ValidationError as error:
            said = _said(error, tuple(model.model_fields), "option")
            raise ValueError(f"options of the tool '{self.name}': {said}") from error
        return {name: getattr(found, name) for name in options}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Function) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    inline: bool = False,
    timeout: float | None = None,
    concurrency: int | None = None,
    idempotent: bool = False,
    retries: int = RETRIES,
    replaces: bool = False,
) -> Callable[[Function], Tool]: ...


def tool(
    function: Function | None = None, *, replaces: bool = False, **settings: Any
) -> Tool | Callable[[Function], Tool]:
    """Make a function or a class a tool that `agentloop.tools` can name.

    To be used with arguments or without.

    Args:
        function: the function or class.
        replaces: take the place of whoever has the name.
        **settings: see `Tool`.

    Raises:
        ValueError: the function cannot be a tool, or the name is taken.
    """

    def register(function: Function) -> Tool:
        made = Tool(function, **settings)
        made.__module__ = function.__module__
        tool_registry.register(made.name, made, replaces=replaces)
        return made

    return register if function is None else register(function)


def _call_of(cls: type, name: str) -> Function:
    found = (vars(each)["__call__"] for each in cls.__mro__ if "__call__" in vars(each))
    called = next(found, None)
    if not inspect.isfunction(called):
        raise ValueError(
            f"the tool '{name}' is a class without `__call__`: write one, it is what a model calls"
        )
    return called


def _no_options(self: Any) -> None:
    """Take nothing."""


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _returns(function: Function) -> TypeAdapter[Any] | None:
    """Return what checks an answer; None if the function does not say what it returns."""
    hints = typing.get_type_hints(function, include_extras=True)
    if "return" not in hints or inspect.isgeneratorfunction(function):
        return None
    if inspect.isasyncgenfunction(function):
        return None
    try:
        return TypeAdapter(hints["return"], config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        # A model or a dataclass, which has a config of its own.
        return TypeAdapter(hints["return"])


def _model_of(
    function: Function, name: str, about: Mapping[str, str], bound: bool = False
) -> type[BaseModel]:
    """Return a model of the parameters of a function, without the first if it is a method."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
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


def _documentation(function: Function, called: Function) -> tuple[str, dict[str, str]]:
    """Return what a Google-style docstring says of a function, and of its parameters.

    Args:
        function: the function or class.
        called: the function; that of a class has the docstring if the class has none.
    """
    text = inspect.getdoc(called) or ""
    if called is not function and function.__doc__:
        text = inspect.cleandoc(function.__doc__)
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


def _said(error: ValidationError, known: tuple[str, ...], what: str = "argument") -> str:
    """Say what is wrong with arguments, in a line that a model can act on."""
    found = []
    for each in error.errors():
        place = ".".join(map(str, each["loc"]))
        if each["type"] == "missing":
            found.append(f"the {what} {place!r} is missing")
        elif each["type"] == "extra_forbidden":
            found.append(f"there is no {what} {place!r}, only {', '.join(known) or 'none'}")
        else:
            found.append(f"{place!r}: {each['msg'][:1].lower()}{each['msg'][1:]}")
    return "; ".join(found)
