"""The schema as documentation: JSON Schema for editors, Markdown for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

from rlinf.config.errors import show
from rlinf.config.plugins import get_schema, known_names, load_extension
from rlinf.config.schema.root import SECTIONS, TASKS, root_model
from rlinf.config.supported_model import SupportedModel
from rlinf.config.walk import default_of, describe, fields_below, section_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return JSON Schema (draft 2020-12) for a resolved config, with all registered plug-ins.

    The config has one `if`/`then` per task type, a section that plug-ins extend one per name.
    """
    load_extension()
    roots = {name: root_model(name) for name in TASKS}
    places, whole = models_json_schema([(root, "validation") for root in roots.values()])
    definitions = whole["$defs"]
    for owner in _plugin_sections():
        node = definitions[owner.__name__]
        node["unevaluatedProperties"] = node.pop("additionalProperties")
        node["allOf"] = []
        for kind, selector in owner.plugin_selectors.items():
            names = _names(kind)
            _restrict(node["properties"][selector], names)
            for name in names:
                is_default = default_of(owner.model_fields[selector]) == name
                rule = _plugin_rule(kind, name, selector, definitions, is_default)
                node["allOf"] += [rule] if rule else []
        if not node["allOf"]:
            del node["allOf"]
    runner = {"required": ["task_type"], "properties": {"task_type": {"enum": list(TASKS)}}}
    return {
        "$schema": DIALECT,
        "title": "RLinf config",
        "type": "object",
        "required": ["runner"],
        "properties": {"runner": {"type": "object", **runner}},
        "allOf": [
            {"if": _has_task(name), "then": places[root, "validation"]}
            for name, root in roots.items()
        ],
        "$defs": definitions,
    }


def _has_task(name: str) -> dict[str, Any]:
    chosen = {"properties": {"task_type": {"const": name}}, "required": ["task_type"]}
    return {"properties": {"runner": chosen}, "required": ["runner"]}


def config_reference_markdown() -> str:
    """Return the reference page: a table per section, then the keys of every plug-in."""
    load_extension()
    lines = [
        "# Configuration reference",
        "",
        "Every key of a config, generated from the schema. Keys that a config leaves out have the",
        "default; *required* marks keys without one. A key that a task type does not have is an",
        "error there.",
        "",
        *_task_lines(),
    ]
    for name, about in SECTIONS.items():
        lines += ["", f"## {name}", "", about, *_section_lines(name)]
    lines += ["", "## Plug-ins", "", "Keys that depend on the value of another key."]
    selectors = {}
    for owner in _plugin_sections():
        selectors.update(owner.plugin_selectors)
    for kind, selector in selectors.items():
        lines += _plugin_lines(kind, selector)
    return "\n".join(lines) + "\n"


def _plugin_sections() -> list[type[BaseModel]]:
    """Return the sections that plug-ins extend, each once."""
    found: dict[str, type[BaseModel]] = {}
    for task in TASKS:
        for _, field, _ in fields_below(root_model(task)):
            section = section_of(field.annotation)
            if getattr(section, "plugin_selectors", None):
                found[section.__name__] = section
    return list(found.values())


def _names(kind: str) -> list[str]:
    if kind == "model":
        return sorted(SupportedModel.names())
    return known_names(kind)


def _schema(kind: str, name: str) -> type[BaseModel] | None:
    return get_schema(kind, name) if name in known_names(kind) else None


def _restrict(selector: dict[str, Any], names: list[str]) -> None:
    for option in selector.get("anyOf", [selector]):
        if option.get("type") == "string" and names:
            option["enum"] = names


def _plugin_rule(
    kind: str, name: str, selector: str, definitions: dict[str, Any], is_default: bool
) -> dict[str, Any] | None:
    model = _schema(kind, name)
    if model is None:
        return None
    own = model.model_json_schema()
    definitions.update(own.get("$defs", {}))
    then = {key: own[key] for key in ("properties", "required") if key in own}
    chosen: dict[str, Any] = {"properties": {selector: {"const": name}}}
    if not is_default:
        chosen["required"] = [selector]
    return {"if": chosen, "then": then}


def _task_lines() -> list[str]:
    lines = ["| `runner.task_type` | sections it needs | placed components |", "|---|---|---|"]
    for name, task in TASKS.items():
        sections = ", ".join(f"`{item}`" for item in task.required)
        components = ", ".join(f"`{item}`" for item in task.components) or "any"
        lines.append(f"| `{name}` | {sections} | {components} |")
    return lines


def _section_lines(name: str) -> list[str]:
    """Return a table of the keys that all tasks of a section share, then one per set of tasks."""
    rows: dict[str, list[str]] = {}
    tasks = [task for task in TASKS if name in root_model(task).model_fields]
    for task in tasks:
        model = section_of(root_model(task).model_fields[name].annotation)
        for path, field in [] if model is None else _values(model, name):
            rows.setdefault(_row(path, field), []).append(task)
    tables: dict[tuple[str, ...], list[str]] = {}
    for row, users in rows.items():
        tables.setdefault(tuple(users), []).append(row)
    lines = ["", f"With task type {_listed(tasks)}."] if len(tasks) < len(TASKS) else []
    for users in sorted(tables, key=len, reverse=True):
        if len(users) < len(tasks):
            lines += ["", f"With task type {_listed(users)} only:"]
        lines += ["", *_HEAD, *tables[users]]
    return lines


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")


def _table(model: type[BaseModel]) -> list[str]:
    return [*_HEAD, *(_row(path, field) for path, field in _values(model))]


def _values(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, FieldInfo]]:
    """Yield path and field of every key that is not a section itself."""
    for path, field, _ in fields_below(model, prefix):
        if section_of(field.annotation) is None:
            yield path, field


def _row(path: str, field: FieldInfo) -> str:
    default = default_of(field)
    shown = "*required*" if default is ... else f"`{_cell(show(default))}`"
    about = field.description or ""
    return f"| `{path}` | {_cell(describe(field))} | {shown} | {_cell(about)} |"


def _plugin_lines(kind: str, selector: str) -> list[str]:
    names: dict[type[BaseModel] | None, list[str]] = {}
    for name in _names(kind):
        names.setdefault(_schema(kind, name), []).append(f"`{name}`")
    plain = names.pop(None, [])
    lines = ["", f"### {kind}, by `{selector}`"]
    for model, users in names.items():
        lines += ["", f"{', '.join(users)}:", "", *_table(model)]
    if plain:
        lines += ["", f"Without keys of their own: {', '.join(plain)}."]
    if not names and not plain:
        lines += ["", "None is built in."]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
