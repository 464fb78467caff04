"""The placement map of ``rlinf check``: who runs where, and who shares what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from rlinf.config.placement import format_ranks
from rlinf.config.placement.resources import ACCELERATOR, CPU, NODE
from rlinf.scheduler.placement.base import Placement
from rlinf.scheduler.placement.component import ComponentPlacement

MAX_ROWS = 16
"""A component with more processes than this is shown by node instead of by process."""

_DEVICE_NAMES = {ACCELERATOR: "gpu", CPU: "cpu slot"}


def format_placement_map(component_placement: ComponentPlacement) -> str:
    """Return a table of component, process rank, node and devices, and what components share.

    Args:
        component_placement: A resolved placement.
    """
    rows = [("component", "rank", "node", "devices")]
    for name in component_placement.components:
        placements = component_placement.get_placement(name)
        shown = _by_process(placements)
        if len(placements) > MAX_ROWS:
            shown = _by_node(placements)
        rows.extend((name if i == 0 else "", *row) for i, row in enumerate(shown))
    lines = [_summary(component_placement), "", *_table(rows), ""]
    return "\n".join(lines + _sharing(component_placement))


def _summary(placement: ComponentPlacement) -> str:
    topology = placement.topology
    nodes = topology.num_nodes
    text = f"{nodes} node{'s' if nodes > 1 else ''}, "
    if topology.num_accelerators:
        models = sorted({n.accelerator_model for n in topology.nodes if n.num_accelerators})
        return f"{text}{topology.num_accelerators} accelerators ({', '.join(models)})"
    if topology.cpu_slots_per_node:
        return f"{text}no accelerators, {topology.cpu_slots_per_node} CPU slots per node"
    return f"{text}no accelerators: ranks are nodes"


def _by_process(placements: Sequence[Placement]) -> list[tuple[str, str, str]]:
    return [(str(p.rank), str(p.cluster_node_rank), _devices(p)) for p in placements]


def _by_node(placements: Sequence[Placement]) -> list[tuple[str, str, str]]:
    """One row for the processes of a node; neighbouring nodes that look the same share a row."""
    runs: list[tuple[int, list[int], tuple[str, str]]] = []
    for node, group in groupby(placements, key=lambda p: p.cluster_node_rank):
        members = list(group)
        used = sorted({rank for p in members for rank in p.local_hardware_ranks})
        each = len(members[0].local_hardware_ranks)
        share = f"{len(members)} processes" if not used else ""
        if each > 1:
            share = f"{each} per process"
        elif used and len(members) > len(used):
            share = f"{len(members) // len(used)} processes on each"
        look = (_name(members[0].resource_kind, used), share)
        runs.append((node, [p.rank for p in members], look))
    rows = []
    for (devices, share), same in groupby(runs, key=lambda run: run[2]):
        part = list(same)
        ranks = format_ranks(rank for run in part for rank in run[1])
        text = f"{devices} of each node" if len(part) > 1 and devices != "-" else devices
        nodes = format_ranks(run[0] for run in part)
        rows.append((ranks, nodes, ", ".join(filter(None, (text, share)))))
    return rows


def _devices(placement: Placement) -> str:
    return _name(placement.resource_kind, placement.local_hardware_ranks)


def _name(kind: str, ranks: Iterable[int]) -> str:
    return "-" if kind == NODE else f"{_DEVICE_NAMES.get(kind, kind)} {format_ranks(ranks)}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]


def _sharing(placement: ComponentPlacement) -> list[str]:
    users: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for name in placement.components:
        for device in placement.devices(name):
            users[device].append(name)
    lines = [f"mode: {placement.placement_mode.value}"]
    shared: dict[tuple[tuple[str, ...], str, int], list[int]] = defaultdict(list)
    for (kind, node, local), names in sorted(users.items()):
        if len(names) > 1:
            shared[tuple(names), kind, node].append(local)
    nodes: dict[tuple[tuple[str, ...], str], list[int]] = defaultdict(list)
    for (names, kind, node), ranks in shared.items():
        nodes[names, "" if kind == NODE else f" {_name(kind, ranks)}"].append(node)
    for (names, devices), ranks in nodes.items():
        where = f"node{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
        lines.append(f"  {' + '.join(names)} share {where}{devices}")
    return lines if shared else [*lines, "  no component shares devices with another"]
