"""``cluster.node_groups``: labelled sets of nodes with their environment and hardware."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf.config.placement.errors import PlacementError, Source, did_you_mean, show_yaml
from rlinf.config.placement.ranks import Limit, format_ranks, parse_ranks

CLUSTER_GROUP = "cluster"
"""Reserved label: every node, with its accelerators."""
NODE_GROUP = "node"
"""Reserved label: every node, counted as one resource each."""

_PATH = "cluster.node_groups"
_GROUP_KEYS = (
    "label",
    "node_ranks",
    "env_configs",
    "hardware",
    "hardware_type",
    "ignore_hardware",
)
_ENV_KEYS = ("node_ranks", "env_vars", "python_interpreter_path")
_ANY = 1_000_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[^\s,:]+")


@dataclass(frozen=True)
class EnvConfig:
    """Environment variables and interpreter for workers on some nodes of a group."""

    node_ranks: tuple[int, ...]
    env_vars: Mapping[str, str] = field(default_factory=dict)
    python_interpreter_path: str | None = None


@dataclass(frozen=True)
class NodeGroupSpec:
    """One node group as written in the config."""

    label: str
    node_ranks: tuple[int, ...]
    hardware_type: str | None = None
    hardware_configs: tuple[Mapping[str, Any], ...] = ()
    """The entries of ``hardware.configs``; each has a ``node_rank`` of this group."""
    ignore_hardware: bool = False
    env_configs: tuple[EnvConfig, ...] = ()


def parse_node_groups(node_groups: object, num_nodes: int) -> dict[str, NodeGroupSpec]:
    """Read ``cluster.node_groups`` and add the reserved groups.

    Args:
        node_groups: The list of the config, or ``None``.
        num_nodes: How many nodes the cluster has.

    Returns:
        Groups by label; always with ``"cluster"`` and ``"node"``.

    Raises:
        PlacementError: At the first mistake.
    """
    every = tuple(range(num_nodes))
    groups = {
        CLUSTER_GROUP: NodeGroupSpec(CLUSTER_GROUP, every),
        NODE_GROUP: NodeGroupSpec(NODE_GROUP, every, ignore_hardware=True),
    }
    owners: dict[tuple[int, str], str] = {}
    for index, entry in enumerate(_as_list(_PATH, node_groups)):
        path = f"{_PATH}[{index}]"
        group = _parse_group(path, entry, num_nodes, groups)
        if group.hardware_type:
            for rank in group.node_ranks:
                owner = owners.setdefault((rank, group.hardware_type), group.label)
                if owner != group.label:
                    raise PlacementError(
                        f"{path}.hardware",
                        f"group {owner!r} already has the {group.hardware_type} hardware of node"
                        f" {rank}",
                        allowed="one group for each hardware type of a node",
                        fix="merge the two groups, or split their node_ranks",
                    )
        groups[group.label] = group
    return groups


def check_keys(path: str, mapping: object, allowed: Sequence[str]) -> Mapping[str, Any]:
    """Return ``mapping`` if it is one and has only allowed keys."""
    if not isinstance(mapping, Mapping):
        raise Source(path, show_yaml(mapping)).error(
            "is not a mapping", allowed=f"the keys {', '.join(allowed)}"
        )
    for key in mapping:
        if key not in allowed:
            raise Source(path, str(key)).error(
                f"unknown key {key!r}",
                None,
                f"the keys {', '.join(allowed)}",
                did_you_mean(str(key), allowed),
            )
    return mapping


def _parse_group(
    path: str, entry: object, num_nodes: int, groups: Mapping[str, NodeGroupSpec]
) -> NodeGroupSpec:
    entry = check_keys(path, entry, _GROUP_KEYS)
    label = _parse_label(f"{path}.label", entry.get("label"), groups)
    if "node_ranks" not in entry:
        raise PlacementError(
            path, f"node group {label!r} has no node_ranks", allowed="e.g. node_ranks: 0-3"
        )
    nodes = Limit(num_nodes, noun="nodes", grow="raise cluster.num_nodes")
    node_ranks = parse_ranks(f"{path}.node_ranks", entry.get("node_ranks"), nodes)
    ignore = entry.get("ignore_hardware") or False
    if not isinstance(ignore, bool):
        raise Source(f"{path}.ignore_hardware", show_yaml(ignore)).error(
            "is not a truth value", allowed="true or false"
        )
    given = [k for k in ("hardware", "hardware_type") if entry.get(k) is not None]
    if ignore:
        given.append("ignore_hardware")
    if len(given) > 1:
        raise PlacementError(
            path,
            f"node group {label!r} has both {given[0]} and {given[1]}",
            allowed="at most one of hardware, hardware_type and ignore_hardware",
            fix=f"remove {given[1]}",
        )
    hardware_type = entry.get("hardware_type")
    configs: tuple[Mapping[str, Any], ...] = ()
    if entry.get("hardware") is not None:
        hardware_type, configs = _parse_hardware(f"{path}.hardware", entry["hardware"], node_ranks)
    elif hardware_type is not None:
        hardware_type = _check_type(f"{path}.hardware_type", hardware_type)
    env_configs = _parse_env_configs(f"{path}.env_configs", entry.get("env_configs"), node_ranks)
    return NodeGroupSpec(label, node_ranks, hardware_type, configs, ignore, env_configs)


def _parse_label(path: str, label: object, groups: Mapping[str, NodeGroupSpec]) -> str:
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)  # YAML reads the label 4090 as a number.
    if not isinstance(label, str) or not label:
        raise Source(path, show_yaml(label)).error(
            "a node group needs a label", allowed="a name such as gpu or train_4090"
        )
    source = Source(path, label)
    if not _LABEL.fullmatch(label):
        raise source.error(
            f"{label!r} is not a label", allowed="a name without blanks, commas and colons"
        )
    if label in (CLUSTER_GROUP, NODE_GROUP):
        raise source.error(
            f"the label {label!r} is reserved",
            None,
            "any label but 'cluster' (all nodes) and 'node' (all nodes, hardware ignored)",
            "choose another label; the reserved groups need no entry",
        )
    if label in groups:
        raise source.error(f"the label {label!r} is used twice", None, "every label once")
    return label


def _check_type(path: str, hardware_type: object) -> str:
    if not isinstance(hardware_type, str) or not hardware_type:
        raise Source(path, show_yaml(hardware_type)).error(
            "is not a hardware type", allowed="the name of a registered type, such as Franka"
        )
    # The one type whose kind has a name of its own; people write it both ways.
    return "accelerator" if hardware_type.lower() == "accelerator" else hardware_type


def _parse_hardware(
    path: str, entry: object, node_ranks: tuple[int, ...]
) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    entry = check_keys(path, entry, ("type", "configs"))
    hardware_type = _check_type(f"{path}.type", entry.get("type"))
    configs: list[Mapping[str, Any]] = []
    for i, config in enumerate(_as_list(f"{path}.configs", entry.get("configs"))):
        where = f"{path}.configs[{i}]"
        if not isinstance(config, Mapping):
            raise Source(where, show_yaml(config)).error(
                "is not a mapping", allowed="node_rank and the fields of the hardware type"
            )
        config = _plain(config)
        rank = config.get("node_rank")
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise Source(f"{where}.node_rank", show_yaml(rank)).error(
                "is not a node rank", allowed=f"one of {format_ranks(node_ranks)}"
            )
        if rank not in node_ranks:
            raise Source(f"{where}.node_rank", str(rank)).error(
                f"node {rank} is not in this group",
                None,
                f"one of {format_ranks(node_ranks)}",
                "add it to node_ranks, or move the entry",
            )
        if config in configs:
            raise PlacementError(
                where,
                f"is the same as configs[{configs.index(config)}]",
                allowed="every piece of hardware once",
                fix="remove one of the two",
            )
        configs.append(config)
    return hardware_type, tuple(configs)


def _parse_env_configs(
    path: str, entries: object, node_ranks: tuple[int, ...]
) -> tuple[EnvConfig, ...]:
    configs: list[EnvConfig] = []
    variables: dict[tuple[int, str], str] = {}
    interpreters: dict[int, str] = {}
    for i, entry in enumerate(_as_list(path, entries)):
        where = f"{path}[{i}]"
        entry = check_keys(where, entry, _ENV_KEYS)
        ranks = node_ranks
        if entry.get("node_ranks") is not None:
            ranks = _subset(f"{where}.node_ranks", entry["node_ranks"], node_ranks)
        env_vars = _parse_env_vars(f"{where}.env_vars", entry.get("env_vars"))
        interpreter = entry.get("python_interpreter_path")
        if interpreter is not None and (not isinstance(interpreter, str) or not interpreter):
            raise Source(f"{where}.python_interpreter_path", show_yaml(interpreter)).error(
                "is not a path", allowed="the path of a Python interpreter on the node"
            )
        for rank in ranks:
            for name, value in env_vars.items():
                other = variables.setdefault((rank, name), value)
                if other != value:
                    raise PlacementError(
                        f"{where}.env_vars",
                        f"{name} has two values on node {rank}: {other!r} and {value!r}",
                        allowed="one value on each node",
                        fix="give the entries different node_ranks",
                    )
            if interpreter and interpreters.setdefault(rank, interpreter) != interpreter:
                raise PlacementError(
                    f"{where}.python_interpreter_path",
                    f"node {rank} has two interpreters: {interpreters[rank]!r} and {interpreter!r}",
                    allowed="one interpreter on each node of a group",
                    fix="give the entries different node_ranks, or make two groups",
                )
        configs.append(EnvConfig(ranks, env_vars, interpreter))
    return tuple(configs)


def _subset(path: str, value: object, node_ranks: tuple[int, ...]) -> tuple[int, ...]:
    if value == "all":
        return node_ranks
    ranks = parse_ranks(path, value, Limit(_ANY))
    for rank in ranks:
        if rank not in node_ranks:
            raise Source(path, show_yaml(value)).error(
                f"node {rank} is not in this group", allowed=f"nodes {format_ranks(node_ranks)}"
            )
    return ranks


def _parse_env_vars(path: str, value: object) -> dict[str, str]:
    entries = [value] if isinstance(value, Mapping) else _as_list(path, value)
    result: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise Source(path, show_yaml(entry)).error(
                "is not a mapping", allowed="a mapping, or a list of mappings: - NAME: value"
            )
        for name in entry:
            content = entry.get(name)
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                raise Source(path, show_yaml(name)).error("is not the name of a variable")
            if not isinstance(content, (str, int, float)):
                raise Source(f"{path}.{name}", show_yaml(content)).error(
                    "is not text or a number", fix='for an empty variable write ""'
                )
            if name in result:
                raise Source(path, name).error("is given twice", allowed="every variable once")
            result[name] = show_yaml(content)
    return result


def _plain(value: Any) -> Any:
    """Return a config value as dicts and lists, which any process can read."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value.get(key)) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(item) for item in value]
    return value


def _as_list(path: str, value: object) -> Sequence[object]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise Source(path, show_yaml(value)).error("is not a list", allowed="a YAML list")
    return value
