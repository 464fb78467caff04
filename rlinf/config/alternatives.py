"""Sections for data that is checked as far as it can be: some of it is unknown or missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from rlinf.config.walk import default_of, nullable, section_of

UNKNOWN = object()
"""Value of a key that nobody gave and that has no default, or not only one."""


@cache
def any_of(models: tuple[type[BaseModel], ...]) -> type[BaseModel]:
    """Return a section that takes the keys of several, for data of which one is not known.

    A key that all of them describe alike is checked as they say. A key that only some have may be
    absent, and one that they describe differently may have any value.

    Args:
        models: The sections that it may be.
    """
    first = models[0]
    if len(set(models)) == 1:
        return first
    fields: dict[str, Any] = {}
    for key in dict.fromkeys(key for model in models for key in model.model_fields):
        found = [model.model_fields[key] for model in models if key in model.model_fields]
        fields[key] = _merged(found, everywhere=len(found) == len(models))
    return create_model(first.__name__, __base__=first, **fields)


@cache
def relaxed(model: type[BaseModel]) -> type[BaseModel]:
    """Return the section without any key that must be there; inner sections likewise."""
    fields: dict[str, Any] = {}
    for key, field in model.model_fields.items():
        section = section_of(field.annotation)
        inner = section if section is None else relaxed(section)
        if inner is not section or field.is_required():
            fields[key] = _field(field, _annotation([field], inner), required=False)
    return create_model(model.__name__, __base__=model, **fields) if fields else model


def known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return data of such a section without the keys whose value is `UNKNOWN`."""
    return {
        key: known(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not UNKNOWN
    }


def _merged(found: Sequence[FieldInfo], *, everywhere: bool) -> tuple[Any, FieldInfo]:
    sections = [section_of(field.annotation) for field in found]
    inner = any_of(tuple(sections)) if all(sections) else None
    alike = all(_rule(field) == _rule(found[0]) for field in found)
    annotation = _annotation(found, inner) if inner is not None or alike else Any
    required = everywhere and all(field.is_required() for field in found)
    same = everywhere and alike and len({repr(default_of(field)) for field in found}) == 1
    return _field(found[0], annotation, required=required, keeps_default=same)


def _rule(field: FieldInfo) -> tuple[Any, str]:
    return field.annotation, repr(field.metadata)


def _annotation(found: Sequence[FieldInfo], inner: type[BaseModel] | None) -> Any:
    if inner is not None:
        return inner | None if any(nullable(field) for field in found) else inner
    field = found[0]
    # Bounds and conversions stand beside the plain type.
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _field(
    field: FieldInfo, annotation: Any, *, required: bool, keeps_default: bool = True
) -> tuple[Any, FieldInfo]:
    default: dict[str, Any] = {"default": UNKNOWN}
    if required:
        default = {"default": ...}
    elif keeps_default and not field.is_required():
        factory = field.default_factory
        default = {"default": field.default} if factory is None else {"default_factory": factory}
    extra = field.json_schema_extra
    return annotation, Field(description=field.description, json_schema_extra=extra, **default)
