"""Adds the keys of the plug-ins that a config names to the sections that name them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from rlinf.config.alternatives import any_of
from rlinf.config.errors import Problem
from rlinf.config.plugins import UnknownPlugin, get_schema, known_names
from rlinf.config.resolve import join
from rlinf.config.suggest import did_you_mean, how_to_register, listed
from rlinf.config.supported_model import SupportedModel
from rlinf.config.walk import default_of, nullable, section_of


def specialise(
    model: type[BaseModel], data: Mapping[str, Any], problems: list[Problem], path: str = ""
) -> type[BaseModel]:
    """Return a model of the section that also knows the keys of the plug-ins in `data`.

    Args:
        model: The section's own schema.
        data: What the config has in this section.
        problems: Unknown plug-ins are appended here.
        path: Path of the section.

    Returns:
        `model` itself when no plug-in adds anything.
    """
    changed: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        section, value = section_of(field.annotation), data.get(name)
        if section is None or not isinstance(value, Mapping):
            continue
        special = specialise(section, value, problems, join(path, name))
        if special is not section:
            changed[name] = special
    for kind, selector in getattr(model, "plugin_selectors", {}).items():
        name = data.get(selector, default_of(model.model_fields[selector]))
        if isinstance(name, str):
            found = len(problems)
            schema = _lookup(kind, name, join(path, selector), problems)
            if schema is not None:
                model = compose(model, schema)
            elif len(problems) > found:
                model = _with_any(kind, model)
        elif name is not None or model.model_fields[selector].is_required():
            model = _with_any(kind, model)
    return _replace(model, tuple(changed.items())) if changed else model


@cache
def _replace(
    model: type[BaseModel], sections: tuple[tuple[str, type[BaseModel]], ...]
) -> type[BaseModel]:
    """Return `model` with other classes for some of the sections in it."""
    fields: dict[str, Any] = {}
    for name, section in sections:
        old = model.model_fields[name]
        # The default is never used: there is data for these sections.
        default = {} if old.is_required() else {"default": None}
        annotation = section | None if nullable(old) else section
        fields[name] = (annotation, Field(description=old.description, **default))
    return create_model(model.__name__, __base__=model, **fields)


@cache
def compose(base: type[BaseModel], schema: type[BaseModel]) -> type[BaseModel]:
    """Return the section `base` with the keys of `schema` added; its rules stay those of `base`.

    Args:
        base: The section that all plug-ins of a kind share.
        schema: What one plug-in registered.

    Returns:
        A model with the fields of both.
    """
    if issubclass(schema, base):
        return schema
    return create_model(base.__name__, __base__=(schema, base), __doc__=base.__doc__)


def _with_any(kind: str, model: type[BaseModel]) -> type[BaseModel]:
    """Return the section with the keys of all plug-ins: which one is meant is not known."""
    sections = {}
    for name in known_names(kind):
        try:
            schema = get_schema(kind, name)
        except ValueError:
            # Keys that cannot be looked up may be right.
            return _without_key_check(model)
        sections[model if schema is None else compose(model, schema)] = None
    return any_of(tuple(sections)) if sections else model


@cache
def _without_key_check(model: type[BaseModel]) -> type[BaseModel]:
    config = ConfigDict(extra="ignore")
    return type(model.__name__, (model,), {"model_config": config, "__module__": __name__})


def _lookup(kind: str, name: str, path: str, problems: list[Problem]) -> type[BaseModel] | None:
    if kind == "model":
        # A model type may be registered without keys of its own.
        if SupportedModel.find(name) is None:
            names = SupportedModel.names()
            message = f"no model is registered under this name; known: {listed(names)}"
            hints = filter(None, [did_you_mean(name, names), how_to_register(kind)])
            problems.append(Problem(path, name, message, "\n".join(hints)))
            return None
        if name.lower() not in known_names("model"):
            return None
    try:
        return get_schema(kind, name)
    except UnknownPlugin as error:
        problems.append(Problem(path, name, str(error), error.hint))
    except ValueError as error:
        problems.append(Problem(path, name, str(error)))
    return None
