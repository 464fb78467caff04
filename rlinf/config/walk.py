"""Walks the schema: sections inside sections, all keys, and each key's rule in plain words."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlinf.config.errors import show

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_PLURALS = {bool: "true/false values", int: "whole numbers", float: "numbers", str: "texts"}
_BOUNDS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class in an annotation such as `X` or `X | None`; None if none is."""
    for option in options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def item_section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class of the items of a list annotation; None if there is none."""
    for option in options(annotation):
        if get_origin(option) is list:
            return section_of(get_args(option)[0])
    return None


def map_section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class of the values of a dict annotation; None if there is none."""
    for option in options(annotation):
        if get_origin(option) is dict:
            return section_of(get_args(option)[1])
    return None


def options(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union annotation, without their `Annotated` wrapping."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(option for item in get_args(annotation) for option in options(item))
    if hasattr(annotation, "__metadata__"):
        return options(annotation.__origin__)
    return (annotation,)


def item_field(field: FieldInfo) -> FieldInfo:
    """Return a field that describes the items of a list field."""
    for option in options(field.annotation):
        if get_origin(option) is list:
            return FieldInfo.from_annotation(get_args(option)[0])
    return field


def nullable(field: FieldInfo) -> bool:
    """Return whether a key may be null."""
    return type(None) in options(field.annotation) or field.annotation is Any


def default_of(field: FieldInfo) -> Any:
    """Return the value that an absent key has; `...` when the key is mandatory."""
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def fields_below(
    model: type[BaseModel], prefix: str = ""
) -> Iterator[tuple[str, FieldInfo, type[BaseModel]]]:
    """Yield every key of a section and of the sections in it.

    Args:
        model: Where to start.
        prefix: Path of `model` itself.

    Yields:
        Dotted path, field, and the section class that the field belongs to. Items of a list of
        sections have `[]` in their path, and values of a map of sections `.NAME`.
    """
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, field, model
        inner, item = section_of(field.annotation), item_section_of(field.annotation)
        if inner is not None:
            yield from fields_below(inner, path)
        elif item is not None:
            yield from fields_below(item, f"{path}[]")
        elif (value := map_section_of(field.annotation)) is not None:
            yield from fields_below(value, f"{path}.NAME")


def find(
    model: type[BaseModel], keys: Sequence[Any]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """Find the section that holds a key, and the key's field.

    Args:
        model: Where to start.
        keys: Keys and list positions that lead there.

    Returns:
        Section class and field; None where the schema has no such thing.
    """
    owner: type[BaseModel] | None = None
    field = None
    inner: type[BaseModel] | None = model
    for key in keys:
        if isinstance(key, int):
            inner = item_section_of(field.annotation) if field is not None else None
        elif inner is None and field is not None and map_section_of(field.annotation) is not None:
            # The name of a value; a further key is looked for in its section.
            inner, field = map_section_of(field.annotation), None
        else:
            owner = inner
            field = owner.model_fields.get(key) if owner is not None else None
            inner = section_of(field.annotation) if field is not None else None
    return owner, field


def describe(field: FieldInfo) -> str:
    """Say in plain words which values a key may have."""
    if own := (field.json_schema_extra or {}).get("words"):
        return own
    words = [text for option in options(field.annotation) if (text := _describe_type(option))]
    if not words:
        return "any value"
    bounds = [
        f"{word} {show(getattr(rule, name))}"
        for rule in field.metadata
        for name, word in _BOUNDS.items()
        if getattr(rule, name, None) is not None
    ]
    if bounds:
        words[0] += ", " + " and ".join(bounds)
    if nullable(field):
        words.append("null")
    return (", or " if bounds else " or ").join(words)


def _describe_type(option: Any) -> str:
    origin = get_origin(option)
    if option in _WORDS:
        return _WORDS[option]
    if origin is Literal:
        choices = [str(item) for item in get_args(option)]
        return f"one of: {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if origin is list or option is list:
        item = options(get_args(option)[0])[0] if get_args(option) else Any
        if get_origin(item) is Literal:
            return f"a list with any of: {', '.join(str(choice) for choice in get_args(item))}"
        return f"a list of {_PLURALS[item]}" if item in _PLURALS else "a list"
    if origin is dict or option is dict or section_of(option) is not None:
        return "a map of keys"
    return ""
