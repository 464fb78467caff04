"""The schema as documentation: JSON Schema for editors, Markdown for people."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rlinf.config.errors import show
from rlinf.config.plugins import get_schema, known_names, load_extension
from rlinf.config.schema.root import SECTIONS, TASKS, root_model
from rlinf.config.supported_model import SupportedModel
from rlinf.config.walk import (
    default_of,
    describe,
    fields_below,
    is_reserved,
    reserved_values,
    section_of,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Returns JSON Schema (draft 2020-12) for a resolved config, with all registered plug-ins.

    A section that plug-ins extend has one `if`/`then` per name.
    """
    load_extension()
    schema = root_model(None).model_json_schema()
    definitions = schema["$defs"]
    for owner in _plugin_sections():
        node = definitions[owner.__name__]
        node["unevaluatedProperties"] = node.pop("additionalProperties")
        node["allOf"] = []
        for kind, selector in owner.plugin_selectors.items():
            names = _names(kind)
            _restrict(node["properties"][selector], names)
            for name in names:
                rule = _plugin_rule(kind, name, selector, definitions)
                node["allOf"] += [rule] if rule else []
        if not node["allOf"]:
            del node["allOf"]
    return {"$schema": DIALECT, "title": "RLinf config", **schema}


def config_reference_markdown() -> str:
    """Returns the reference page: a table per section, then the keys of every plug-in."""
    load_extension()
    lines = [
        "# Configuration reference",
        "",
        "Every key of a config, generated from the schema. Keys that a config leaves out have the",
        "default; *required* marks keys without one. *Not implemented yet* marks keys that are",
        "known and refused.",
        "",
        *_task_lines(),
    ]
    for name, (kind, about) in SECTIONS.items():
        lines += ["", f"## {name}", "", about]
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            lines += ["", *_table(kind, name)]
    lines += ["", "## Plug-ins", "", "Keys that depend on the value of another key."]
    selectors = {}
    for owner in _plugin_sections():
        selectors.update(owner.plugin_selectors)
    for kind, selector in selectors.items():
        lines += _plugin_lines(kind, selector)
    return "\n".join(lines) + "\n"


def _plugin_sections() -> list[type[BaseModel]]:
    """Returns the sections that plug-ins extend, each once."""
    found: dict[str, type[BaseModel]] = {}
    for _, field, owner in fields_below(root_model(None)):
        for section in (owner, section_of(field.annotation)):
            if getattr(section, "plugin_selectors", None):
                found[section.__name__] = section
    return list(found.values())


def _names(kind: str) -> list[str]:
    if kind == "model":
        return sorted(member.value for member in SupportedModel)
    return known_names(kind)


def _schema(kind: str, name: str) -> type[BaseModel] | None:
    return get_schema(kind, name) if name in known_names(kind) else None


def _restrict(selector: dict[str, Any], names: list[str]) -> None:
    for option in selector.get("anyOf", [selector]):
        if option.get("type") == "string" and names:
            option["enum"] = names


def _plugin_rule(
    kind: str, name: str, selector: str, definitions: dict[str, Any]
) -> dict[str, Any] | None:
    model = _schema(kind, name)
    if model is None:
        return None
    own = model.model_json_schema()
    definitions.update(own.get("$defs", {}))
    then = {key: own[key] for key in ("properties", "required") if key in own}
    chosen = {"properties": {selector: {"const": name}}, "required": [selector]}
    return {"if": chosen, "then": then}


def _task_lines() -> list[str]:
    lines = ["| `runner.task_type` | sections it needs | placed components |", "|---|---|---|"]
    for name, task in TASKS.items():
        sections = ", ".join(f"`{item}`" for item in ("runner", *task.required))
        components = ", ".join(f"`{item}`" for item in task.components) or "any"
        lines.append(f"| `{name}` | {sections} | {components} |")
    return lines


def _table(model: type[BaseModel], prefix: str) -> list[str]:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for path, field, _ in fields_below(model, prefix):
        if section_of(field.annotation) is not None and not is_reserved(field):
            continue
        default = default_of(field)
        shown = "*required*" if default is ... else f"`{_cell(show(default))}`"
        about = field.description or ""
        if is_reserved(field):
            about += " *Not implemented yet.*"
        if reserved_values(field):
            about += f" *Not implemented yet: {', '.join(reserved_values(field))}.*"
        lines.append(f"| `{path}` | {_cell(describe(field))} | {shown} | {_cell(about)} |")
    return lines


def _plugin_lines(kind: str, selector: str) -> list[str]:
    names: dict[type[BaseModel] | None, list[str]] = {}
    for name in _names(kind):
        names.setdefault(_schema(kind, name), []).append(f"`{name}`")
    plain = names.pop(None, [])
    lines = ["", f"### {kind}, by `{selector}`"]
    for model, users in names.items():
        lines += ["", f"{', '.join(users)}:", "", *_table(model, "")]
    if plain:
        lines += ["", f"Without keys of their own: {', '.join(plain)}."]
    if not names and not plain:
        lines += ["", "None is built in."]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
