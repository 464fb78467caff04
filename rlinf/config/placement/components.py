"""``component_placement``: which processes of a component use which resource ranks.

A value is a rank text (see :mod:`rlinf.config.placement.ranks`), a YAML list of them, or a mapping
``{node_group: ..., placement: ...}``. ``0-3:0-7`` puts two processes on each of four resources,
``0-7:0-3`` gives two resources to each of four processes; a piece without process ranks has one
process per resource and continues the count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlinf.config.placement.errors import (
    PlacementError,
    Source,
    did_you_mean,
    raise_all,
    show_yaml,
)
from rlinf.config.placement.ranks import (
    Limit,
    Segment,
    check_ranks,
    parse_segments,
    split_commas,
)

PATH = "cluster.component_placement"
WHOLE_CLUSTER = "cluster"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ComponentSpec:
    """What the user wrote for one component."""

    name: str
    node_groups: tuple[str, ...]
    """Labels of the node groups whose resources are numbered one after the other."""
    text: str
    """The placement as written."""
    segments: tuple[Segment, ...]
    path: str
    group_text: str = ""
    """The ``node_group`` entry as written, or ``""``."""

    @property
    def source(self) -> Source:
        """Makes errors that point into the placement."""
        return Source(self.path, self.text)

    def group_error(self, label: str, problem: str, allowed: str, fix: str = "") -> PlacementError:
        """Return an error that points at one of the node groups."""
        text = self.group_text or label
        found = re.search(rf"(?<![^\s,\[]){re.escape(label)}(?![^\s,\]])", text)
        path = self.path.removesuffix(".placement") + ".node_group"
        return Source(path, text).error(problem, found.span() if found else None, allowed, fix)


@dataclass(frozen=True)
class ProcessPlan:
    """The resource ranks that one process of a component uses."""

    rank: int
    resources: tuple[int, ...]


def parse_component_placement(
    placement: object, errors: list[PlacementError] | None = None
) -> dict[str, ComponentSpec]:
    """Read a ``component_placement`` section.

    Args:
        placement: A mapping of component names (or several joined by commas) to placements.
        errors: Collects the mistakes of single components, whose specs are then left out; without
            it they are raised.

    Returns:
        One spec per component, in the order written.

    Raises:
        PlacementError: Holds every mistake that can be seen without knowing the cluster.
    """
    if not isinstance(placement, Mapping) or not placement:
        empty = placement is None or isinstance(placement, Mapping)
        raise Source(PATH, "" if empty else show_yaml(placement)).error(
            "names no component" if empty else "is not a mapping",
            allowed="a mapping of component names to placements",
            fix="write e.g. actor: 0-7",
        )
    specs: dict[str, ComponentSpec] = {}
    found: list[PlacementError] = [] if errors is None else errors
    key_of: dict[str, str] = {}
    for key in placement:
        try:
            names = _component_names(key, key_of)
            # .get, because OmegaConf raises its own error when [] meets a missing value (???).
            spec = _parse_value(f"{PATH}.{key}", placement.get(key))
            specs.update((name, replace(spec, name=name)) for name in names)
        except PlacementError as error:
            found.append(error)
    if errors is None:
        raise_all(found)
    return specs


def resolve(spec: ComponentSpec, num_resources: int | Limit) -> list[ProcessPlan]:
    """Turn a spec into processes, now that the number of resources is known.

    Args:
        spec: What the user wrote.
        num_resources: How many resource ranks there are; a ``Limit`` also says whose they are.

    Returns:
        The processes in rank order, ranks ``0..n-1``.

    Raises:
        PlacementError: If ranks do not exist, repeat, descend, or do not divide.
    """
    limit = num_resources if isinstance(num_resources, Limit) else Limit(num_resources)
    check_ranks(spec.source, spec.segments, limit)
    plans: list[ProcessPlan] = []
    for segment in spec.segments:
        resources = segment.ranks(limit.count)
        count = _process_count(spec.source, segment, len(resources), len(plans))
        for i in range(count):
            first = i * len(resources) // count
            share = max(1, len(resources) // count)
            plans.append(ProcessPlan(len(plans), tuple(resources[first : first + share])))
    return plans


def _process_count(source: Source, segment: Segment, num_resources: int, next_rank: int) -> int:
    part = segment.processes
    if part is None:
        return num_resources
    if part.first != next_rank:
        if part.first < next_rank:
            problem = f"process rank {part.first} is given twice"
        elif next_rank == 0:
            problem = f"the first process rank is {part.first}, not 0"
        else:
            problem = f"process ranks have a gap: {part.first} comes after {next_rank - 1}"
        last = next_rank + len(part) - 1
        ranks = str(last) if last == next_rank else f"{next_rank}-{last}"
        raise source.error(
            problem, part.first_span, "process ranks 0, 1, 2, ... in order", f"write {ranks}"
        )
    count = len(part)
    small, large = sorted((num_resources, count))
    if large % small:
        fits = [
            n
            for n in range(1, count + num_resources + 1)
            if n % num_resources == 0 or num_resources % n == 0
        ]
        below = max(n for n in fits if n < count)
        above = min(n for n in fits if n > count)
        raise source.error(
            f"{num_resources} resources and {count} processes do not divide:"
            f" {large} = {large // small} * {small} + {large % small}",
            segment.span,
            "one of the two numbers must be a multiple of the other",
            f"use {below} or {above} processes for {num_resources} resources",
        )
    return count


def _component_names(key: object, key_of: dict[str, str]) -> list[str]:
    """Return the names in a key; remembers in ``key_of`` which key each came from."""
    allowed = "a component name, or several joined by commas (actor,rollout)"
    source = Source(PATH, show_yaml(key))
    if not isinstance(key, str):
        fix = "write the component first: actor: 0-7" if isinstance(key, int) else ""
        raise source.error(f"the key {source.text} is not a component name", None, allowed, fix)
    names: list[str] = []
    for start, end in split_commas(key):
        name = key[start:end]
        if not name:
            raise Source(PATH, key or '""').error(
                "a component name is empty",
                (max(0, start - 1), max(1, start)),
                allowed,
                "remove the comma" if key.strip() else "",
            )
        if not _NAME.fullmatch(name):
            raise source.error(f"{name!r} is not a component name", (start, end), allowed)
        if name in key_of:
            where = "in the same key" if key_of[name] == key else f"in the key {key_of[name]!r}"
            raise source.error(
                f"component {name!r} is named twice",
                (start, end),
                "every component once",
                f"it is already {where}; keep one of them",
            )
        key_of[name] = key
        names.append(name)
    return names


def _parse_value(path: str, value: object) -> ComponentSpec:
    groups: tuple[str, ...] = (WHOLE_CLUSTER,)
    group_text = ""
    if isinstance(value, Mapping):
        allowed = "the keys node_group and placement"
        for key in value:
            if key not in ("node_group", "placement"):
                near = did_you_mean(str(key), ("node_group", "placement"))
                raise Source(path, str(key)).error(f"unknown key {key!r}", None, allowed, near)
        if "placement" not in value:
            shown = ", ".join(f"{key}: {show_yaml(value.get(key))}" for key in value)
            raise Source(path, f"{{{shown}}}").error(
                "the key placement is missing", None, allowed, "add e.g. placement: all"
            )
        if "node_group" in value:
            groups, group_text = _parse_node_group(path, value.get("node_group"))
        path, value = f"{path}.placement", value.get("placement")
    source, segments = parse_segments(path, value)
    return ComponentSpec("", groups, source.text, segments, path, group_text)


def _parse_node_group(path: str, value: object) -> tuple[tuple[str, ...], str]:
    path = f"{path}.node_group"
    allowed = "a label, labels joined by commas, or a list of labels"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        items, joined = list(value), ", ".join(map(show_yaml, value))
        source, low = Source(path, f"[{joined}]"), 1
    else:
        items, joined = [value], show_yaml(value)
        source, low = Source(path, joined), 0
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise source.error(f"{show_yaml(item)} is not the label of a node group", None, allowed)
    labels: list[str] = []
    for start, end in split_commas(source.text, low, low + len(joined)):
        label = source.text[start:end]
        if not label:
            raise Source(path, source.text or '""').error(
                "the label of a node group is empty", (max(0, start - 1), max(1, start)), allowed
            )
        if label in labels:
            raise source.error(
                f"node group {label!r} is given twice", (start, end), "every node group once"
            )
        labels.append(label)
    return tuple(labels), source.text
