"""Says in plain words what is wrong with an override that Hydra cannot read, or refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.config.errors import Problem
from rlinf.config.suggest import did_you_mean, listed

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

SUFFIXES = (".yaml", ".yml")

_LOOKS_LIKE = "an override looks like runner.max_steps=10; quote values with special characters"
_DOTS = "a key is written with dots: runner.max_steps=10"


@dataclass(frozen=True)
class Parts:
    """The parts that recipes are made of: the files in sub-folders of config folders.

    Attributes:
        folder: folder of the recipe.
        name: its name.
        folders: all folders that have parts for it, its own first.
    """

    folder: Path
    name: str
    folders: tuple[Path, ...]

    def groups(self) -> dict[str, list[str]]:
        """Return the names of the parts, by group."""
        found: dict[str, set[str]] = {}
        for folder in self.folders:
            for path in folder.rglob("*.y*ml"):
                group = path.parent.relative_to(folder).as_posix()
                if path.suffix in SUFFIXES and group != ".":
                    found.setdefault(group, set()).add(path.stem)
        return {group: sorted(names) for group, names in sorted(found.items())}

    @property
    def file(self) -> Path:
        """The file of the recipe."""
        files = [self.folder / f"{self.name}{suffix}" for suffix in SUFFIXES]
        return next(file for file in files if file.is_file())

    def of_recipe(self) -> list[str]:
        """Return what the recipe is made of, such as `env/metaworld`."""
        return _defaults(self.file)

    def recipes_with(self, part: str) -> list[str]:
        """Return the recipes beside this one that are made of a part."""
        files = [path for path in sorted(self.folder.glob("*.y*ml")) if path.suffix in SUFFIXES]
        return [path.stem for path in files if part in _defaults(path)]


def unreadable_overrides(overrides: Sequence[str], parts: Parts) -> list[Problem]:
    """Return what is wrong with overrides that are not written as overrides are."""
    from hydra.errors import HydraException

    problems = []
    for text in overrides:
        try:
            override = _parse(text)
        except HydraException as error:
            message = f"cannot be read: {plain(error)}"
            problems.append(Problem("override", text, message, _LOOKS_LIKE))
            continue
        if override.key_or_group == "defaults":
            message = "the parts of a recipe are named in its file, and not by an override"
            problems.append(Problem("override", text, message, _own_recipe(parts)))
        elif override.is_sweep_override():
            message = "names several values, but a run has one"
            hint = "a list is written [1,2]; text with a comma is quoted twice: \"'1,2'\""
            problems.append(Problem("override", text, message, hint))
        elif _is_unknown_group(override, overrides, parts):
            problems.append(_unknown_group(override, text, parts))
    return problems


def refused_overrides(
    overrides: Sequence[str], compose: Callable[[Sequence[str]], Any], parts: Parts
) -> list[Problem]:
    """Return what is wrong with those overrides that Hydra refuses each on its own.

    Args:
        overrides: as the user wrote them; all can be read.
        compose: composes the recipe with some overrides.
        parts: what the recipe is made of.

    Returns:
        One problem each; none if no single override is to blame.
    """
    if _error(compose, []) is not None:
        return []
    problems = []
    for text in overrides:
        error = _error(compose, [text])
        if error is not None:
            problems.append(_explain(_parse(text), text, error, parts))
    return problems


def merged_overrides(
    overrides: Sequence[str], compose: Callable[[Sequence[str]], Any]
) -> list[Problem]:
    """Return what is wrong with overrides such as `key={}`, which remove nothing.

    A mapping is merged into the one that is there, so an empty one changes nothing.

    Args:
        overrides: as the user wrote them; all can be read.
        compose: composes the recipe with some overrides.
    """
    from omegaconf import OmegaConf

    problems = []
    for place, text in enumerate(overrides):
        override = _parse(text)
        if override.is_delete() or override.value() != {}:
            continue
        key = override.key_or_group
        known = _entry(OmegaConf.to_container(compose(_others(overrides, place, key))), key)
        if isinstance(known, dict) and known:
            names = sorted(map(str, known))
            message = f"changes nothing: mappings are merged, and {key} has {', '.join(names)}"
            hint = (
                f"'~{key}.{names[0]}' removes one of them, '~{key}' the key itself, and "
                f"'~{key}' '{key}={{}}' leaves it empty"
            )
            problems.append(Problem("override", text, message, hint))
    return problems


def _others(overrides: Sequence[str], place: int, key: str) -> list[str]:
    """Return all overrides but one, and but for those behind it that fill what it names."""
    behind = [
        text
        for text in overrides[place + 1 :]
        if not f"{_parse(text).key_or_group}.".startswith(f"{key}.")
    ]
    return [*overrides[:place], *behind]


def _entry(values: Any, key: str) -> Any:
    """Return what is under a key such as `a.b`, as it is written; None if there is nothing."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def plain(error: Exception) -> str:
    """Return what Hydra says, without what a user cannot act on."""
    text = re.split(r"\nConfig search path|\nSet the environment variable|\nSee http", str(error))
    return text[0].strip() or type(error).__name__


def _explain(override: Override, text: str, error: Exception, parts: Parts) -> Problem:
    group = override.key_or_group
    known = parts.groups()
    if group in known:
        return _wrong_part(override, text, known[group], parts)
    if override.is_delete():
        message = f"there is nothing to delete: {parts.name} does not set {group}"
        return Problem("override", text, message, "leave it out")
    return Problem("override", text, plain(error))


def _wrong_part(override: Override, text: str, options: list[str], parts: Parts) -> Problem:
    group, value = override.key_or_group, str(override.value() or "")
    hints = [f"parts of {group}: {', '.join(options)}"]
    if value not in options and not override.is_delete():
        message = f"there is no part {group}/{value}"
        hints = [did_you_mean(value, options), *hints]
    else:
        message = (
            f"{parts.name} is made of {', '.join(parts.of_recipe()) or 'one file'}; an override "
            "cannot exchange one of them, or leave it out"
        )
        recipes = parts.recipes_with(f"{group}/{value}")
        if recipes:
            hints.append(f"recipes with {group}/{value}: {', '.join(recipes)}")
        hints.append(_own_recipe(parts, group, "" if override.is_delete() else value))
    hints.append(_DOTS)
    return Problem("override", text, message, "\n".join(filter(None, hints)))


def _is_unknown_group(override: Override, overrides: Sequence[str], parts: Parts) -> bool:
    group = override.key_or_group
    if "/" not in group or group.startswith("hydra/") or group in parts.groups():
        return False
    # Groups of other folders are not known here.
    return not any("searchpath" in item for item in (*overrides, parts.file.read_text("utf-8")))


def _unknown_group(override: Override, text: str, parts: Parts) -> Problem:
    group, known = override.key_or_group, parts.groups()
    above, _, part = group.rpartition("/")
    if part in known.get(above, ()):
        message = f"{group} is a part, and not a group of parts"
    else:
        message = f"there is no group of parts {group}"
    each = "; ".join(f"{name}: {', '.join(options)}" for name, options in known.items())
    hints = [did_you_mean(group, known), f"groups and their parts: {each or listed(())}", _DOTS]
    return Problem("override", text, message, "\n".join(filter(None, hints)))


def _own_recipe(parts: Parts, group: str = "", value: str = "") -> str:
    """Return how to have other parts: of `group` the part `value`, or none if it is empty."""
    chosen = [
        (f"{group}/{value}" if value else "") if group and item.startswith(f"{group}/") else item
        for item in parts.of_recipe()
    ]
    if value and f"{group}/{value}" not in chosen:
        chosen.append(f"{group}/{value}")
    named = ", ".join([*filter(None, chosen), "_self_"])
    return f"a recipe of your own is a file that begins with: defaults: [{named}]"


def _defaults(path: Path) -> list[str]:
    import yaml

    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    entries = content.get("defaults", []) if isinstance(content, dict) else []
    named = [
        next((f"{key.split()[-1]}/{value}" for key, value in entry.items()), "")
        if isinstance(entry, dict)
        else str(entry)
        for entry in entries
    ]
    return [entry for entry in named if entry and entry != "_self_"]


def _parse(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(text)


def _error(compose: Callable[[Sequence[str]], Any], overrides: Sequence[str]) -> Exception | None:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        compose(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        return error
    return None
