"""Finds the nodes of a run: waits for them, asks each about itself, and ranks them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.cluster.lost_nodes import lost_nodes
from rlinf.scheduler.cluster.probe import probe_node
from rlinf.scheduler.cluster.ray_session import RaySession
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.hardware import enumerate_hardware
from rlinf.scheduler.inline.session import InlineSession
from rlinf.scheduler.topology.node import AliveNode, NodeInfo
from rlinf.scheduler.topology.topology import hardware_of_nodes, rank_nodes

# Variables that describe one shell or one host, not the run.
_PRIVATE_VARS = (
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "HOME",
    "USER",
    "LOGNAME",
    "HOSTNAME",
    "TERM",
    "SHELL",
    # Ray sets it in the driver.
    "PYTHONBREAKPOINT",
)
_PRIVATE_PREFIXES = (
    "RAY_",
    "SSH_",
    "XDG_",
    "DBUS_",
    "TMUX",
    "VSCODE_",
    "LS_COLORS",
    ClusterEnvVar.NODE_RANK.full_name,
)
_PROBE_SECONDS = 60.0


@dataclass
class FoundNodes:
    """The nodes of a run.

    Attributes:
        nodes: in the order of their ranks.
        driver_node: the node that this process runs on.
        driver_env: variables that differ between the driver and the Ray of its node; all get them.
        oom_kills: count of processes killed for memory so far, by node rank.
    """

    nodes: list[NodeInfo]
    driver_node: NodeInfo
    driver_env: dict[str, str] = field(default_factory=dict)
    oom_kills: dict[int, int] = field(default_factory=dict)


def find_nodes(
    session: RaySession | InlineSession, count: int, cfg: Mapping[str, Any], deadline: float
) -> FoundNodes:
    """Wait for `count` nodes (0: those that are there) and describe them."""
    here = session.this_node()
    alive = session.wait_for_nodes(count, deadline, lambda nodes: _missing(session, nodes, count))
    facts = _ask(session, alive)
    infos = [_describe(node, facts[node.ray_id]) for node in alive]
    ranked, extra = rank_nodes(
        infos, count, has_node_groups=bool(cfg.get("node_groups")), gaps=bool(lost_nodes())
    )
    for node in extra:
        print(f"node {node.node_ip} is not used: cluster.num_nodes is {count}", file=sys.stderr)
    driver = next((node for node in ranked if node.ray_id == here), None)
    if driver is None:
        raise ClusterError(
            "the node of this process is not among the nodes of the run; start the program on one "
            f"of them: {[node.node_ip for node in ranked]}"
        )
    _find_hardware(session, ranked, cfg)
    return FoundNodes(
        ranked,
        driver,
        {} if session.local else _changed_env(facts[here]["env"]),
        {node.node_rank: facts[node.ray_id]["oom_kills"] for node in ranked},
    )


def _find_hardware(session: Any, nodes: list[NodeInfo], cfg: Mapping[str, Any]) -> None:
    """Look for the robots and other hardware that the configuration names, on their nodes."""
    wanted = hardware_of_nodes(cfg, len(nodes))
    for node in nodes:
        if wanted[node.node_rank]:
            args = (enumerate_hardware, node.node_rank, wanted[node.node_rank])
            found = args[0](*args[1:]) if session.local else session.run_on(node.ray_id, *args)
            node.hardware_resources = found


def _ask(session: Any, nodes: list[AliveNode]) -> dict[str, dict[str, Any]]:
    """Return the facts of each node; the only node of one's own Ray is this process's."""
    if session.local:
        return {node.ray_id: probe_node() for node in nodes}
    started = {node.ray_id: session.start_on(node.ray_id, probe_node) for node in nodes}
    return {ray_id: result(_PROBE_SECONDS) for ray_id, result in started.items()}


def _describe(node: AliveNode, facts: dict[str, Any]) -> NodeInfo:
    return NodeInfo(
        node_rank=-1,
        ray_id=node.ray_id,
        node_ip=node.ip,
        comm_ips=facts["comm_ips"],
        is_head=node.is_head,
        num_cpus=facts["num_cpus"],
        python_interpreter_path=facts["python"],
        default_env_vars=facts["env"],
        hardware_resources=facts["hardware"],
    )


def _missing(session: Any, nodes: list[AliveNode], count: int) -> str:
    """Return which ranks have not come, as far as the ones that did can tell."""
    try:
        facts = _ask(session, nodes)
    except Exception as error:
        return f"and the ones that did cannot be asked: {error}"
    ranks = [facts[node.ray_id]["node_rank"] for node in nodes]
    if all(rank is not None for rank in ranks):
        missing = sorted(set(range(count)) - {int(rank) for rank in ranks})
        return f"RLINF_NODE_RANK {', '.join(map(str, missing))} missing; is Ray running there?"
    return f"those at {', '.join(node.ip for node in nodes)} did; is Ray running on the others?"


def _changed_env(of_node: Mapping[str, str]) -> dict[str, str]:
    """Return what was set or changed for the driver since Ray was started on its node."""
    return {
        key: value
        for key, value in os.environ.items()
        if of_node.get(key) != value
        and key not in _PRIVATE_VARS
        and not key.startswith(_PRIVATE_PREFIXES)
    }
