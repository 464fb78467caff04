"""Says in a user's words what the schema found wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlinf.config.errors import ABSENT, Problem, show
from rlinf.config.old_keys import ADVICE
from rlinf.config.resolve import join
from rlinf.config.schema.root import tasks_with
from rlinf.config.suggest import did_you_mean
from rlinf.config.walk import (
    default_of,
    describe,
    fields_below,
    find,
    item_field,
    nullable,
    options,
    section_of,
)

_UNKNOWN = ("extra_forbidden", "invalid_key")


def explain(error: Mapping[str, Any], model: type[BaseModel], data: Any) -> Problem:
    """Turn one error of the schema library into a problem.

    Args:
        error: An item of pydantic's `ValidationError.errors()`.
        model: The schema that was applied.
        data: The data it was applied to.

    Returns:
        The problem.
    """
    keys = data_keys(error, data)
    path, value = path_of(keys), _value_at(keys, data)
    owner, field = find(model, keys)
    if error["type"] in _UNKNOWN:
        message, hint = _unknown(keys, path, owner, model)
        return Problem(path, value, message, hint)
    if error["type"] == "missing":
        return Problem(path, ABSENT, f"is missing: {_about(field)}")
    if error["type"] == "value_error":
        return Problem(path, value, str(error["ctx"]["error"]))
    if field is None:
        return Problem(path, value, "has a wrong type")
    if isinstance(keys[-1], int):
        field = item_field(field)
    return Problem(path, value, f"must be {describe(field)}", _type_hint(value, field))


def data_keys(error: Mapping[str, Any], data: Any) -> list[Any]:
    """Return where in the data an error is: keys and list positions.

    The schema library also names the members of unions in its locations; those are left out.

    Args:
        error: An item of pydantic's `ValidationError.errors()`.
        data: The data that was checked.

    Returns:
        Keys and list positions.
    """
    keys: list[Any] = []
    for part in error["loc"]:
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif error["type"] != "missing" or part != error["loc"][-1]:
            continue
        keys.append(part)
    return keys


def path_of(keys: Sequence[Any]) -> str:
    """Return keys and list positions as one dotted path."""
    path = ""
    for key in keys:
        path = join(path, key)
    return path


def _unknown(
    keys: Sequence[Any], path: str, owner: type[BaseModel] | None, model: type[BaseModel]
) -> tuple[str, str]:
    parent = path_of(keys[:-1])
    valid = list(owner.model_fields) if owner is not None else []
    where = f"'{parent}'" if parent else "the config"
    message = f"unknown key: {where} has no '{keys[-1]}'"
    if path in ADVICE:
        return message, ADVICE[path]
    task = getattr(model, "task_of_config", None)
    others = tasks_with(keys) if task is not None else []
    if others:
        message = f"unknown key: a run of task_type {task} has no '{path}'"
        return message, f"it is a key of task_type {' and '.join(others)}; remove it"
    near = did_you_mean(keys[-1], valid)
    hints = [near] if near else []
    elsewhere = [
        other
        for other, _, _ in fields_below(model)
        if other.rpartition(".")[2] == str(keys[-1]) and other != path
    ]
    if elsewhere:
        hints.append(f"the key exists as {' and '.join(elsewhere[:3])}")
    if not hints:
        hints.append(f"allowed here: {', '.join(sorted(valid))}")
    if not near and getattr(owner, "plugin_selectors", None):
        selectors = " or ".join(owner.plugin_selectors.values())
        hints.append(f"keys of a plug-in are those its {selectors} registered (register_schema)")
    return message, "\n".join(hints)


def _about(field: FieldInfo | None) -> str:
    if field is None:
        return "a value is needed"
    text = f"{describe(field)} is needed"
    return f"{text} ({field.description.rstrip('.')})" if field.description else text


def _type_hint(value: Any, field: FieldInfo) -> str:
    kinds = options(field.annotation)
    if value is None:
        default = default_of(field)
        return "" if default in (..., None) else f"leave it out to get the default, {show(default)}"
    if isinstance(value, str):
        if choices := _choices(field):
            return did_you_mean(value, choices)
        if (int in kinds or float in kinds) and value.strip().lstrip("+-").isdigit():
            return f"write {value.strip()} without quotes"
        if bool in kinds and value.lower() in ("true", "false", "yes", "no", "on", "off"):
            return "write true or false without quotes"
        return f"{show(value)} is text"
    if isinstance(value, bool):
        return "true and false are not numbers" if {int, float} & set(kinds) else ""
    if isinstance(value, (int, float)) and str in kinds:
        return f'put it in quotes: "{value}"'
    if isinstance(value, dict) and not nullable(field) and section_of(field.annotation) is None:
        return "it has no keys of its own"
    return ""


def _choices(field: FieldInfo) -> list[str]:
    found = [get_args(item) for item in options(field.annotation) if get_origin(item) is Literal]
    return [str(item) for items in found for item in items]


def _value_at(keys: Sequence[Any], data: Any) -> Any:
    for key in keys:
        if isinstance(data, Mapping) and key not in data:
            return ABSENT
        data = data[key]
    return data
