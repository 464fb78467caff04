"""Every key of the schema with the values it may have, kept in a file: TAB must not take long.

The schema takes longer to import than a user waits for a completion.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from rlinf.config.builtin import MODULES


class Key(NamedTuple):
    """A key of the config.

    Attributes:
        section: Whether it holds further keys.
        values: What it may be, where that is a choice.
        about: What it does.
    """

    section: bool
    values: list[str]
    about: str


def config_keys() -> dict[str, Key]:
    """Return every key of any task type by its dotted path, those of built-in plug-ins included."""
    state, place = _state(), _cache_file()
    # It is there to save time: one that cannot be read is made anew, or done without.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(place.read_text(encoding="utf-8"))
        if kept["state"] == state:
            return {path: Key(*content) for path, content in kept["keys"].items()}
    found = read_schema()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.{secrets.token_hex(4)}")
        part.write_text(json.dumps({"state": state, "keys": found}), encoding="utf-8")
        os.replace(part, place)
    return found


def read_schema() -> dict[str, Key]:
    """Return the keys as `config_keys` does, from the schema itself."""
    from rlinf.config.plugins import get_schema, known_names
    from rlinf.config.schema.root import TASKS, root_model
    from rlinf.config.walk import fields_below, section_of

    found: dict[str, Key] = {}

    def add(path: str, field: Any) -> None:
        is_section = section_of(field.annotation) is not None
        known = found.setdefault(path, Key(is_section, [], field.description or ""))
        known.values.extend(value for value in _values(field) if value not in known.values)

    for task, facts in TASKS.items():
        for path, field, owner in fields_below(root_model(task)):
            # Overrides do not reach into lists.
            if "[]" in path:
                continue
            add(path, field)
            for kind, selector in getattr(owner, "plugin_selectors", {}).items():
                if path.rpartition(".")[2] != selector:
                    continue
                found[path].values.extend(
                    name for name in known_names(kind) if name not in found[path].values
                )
                for name in known_names(kind):
                    schema = get_schema(kind, name)
                    section = path.rpartition(".")[0]
                    for own, field_of_own, _ in fields_below(schema, section) if schema else ():
                        if "[]" not in own:
                            add(own, field_of_own)
        for component in facts.components:
            path = f"cluster.component_placement.{component}"
            found[path] = Key(False, [], f"Where the processes of {component} go.")
    placement = found["cluster.component_placement"]
    found["cluster.component_placement"] = placement._replace(section=True)
    return found


def _values(field: Any) -> Iterator[str]:
    from rlinf.config.walk import options

    for option in options(field.annotation):
        if option is bool:
            yield from ("true", "false")
        elif option is type(None):
            yield "null"
        elif get_origin(option) is Literal:
            yield from map(str, get_args(option))


def _cache_file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "rlinf" / "config_keys.json"


def _state() -> list[list[Any]]:
    """Return path, size and time of every file that keys come from."""
    from rlinf import config

    folder = Path(config.__file__).parent
    package = folder.parent
    names = {name for modules in MODULES.values() for name in modules}
    files = [package.parent / f"{name.replace('.', '/')}.py" for name in names]
    files += [*folder.glob("schema/*.py"), Path(__file__)]
    found = []
    for file in sorted(files):
        facts = file.stat()
        found.append([str(file), facts.st_size, facts.st_mtime_ns])
    return found
