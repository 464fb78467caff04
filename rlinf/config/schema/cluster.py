"""The `cluster` section: which machines there are and who runs where.

Ranks, labels and placements have a grammar of their own; `rlinf.config.placement` checks them.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section, free


class NodeEnvConfig(Section):
    """Environment of the workers on some nodes of a group."""

    node_ranks: Any = free(
        None, "node ranks or null", "Nodes of the group: `0-7`, `0,2`, a list; null is all."
    )
    env_vars: Any = free(
        None, "a map or a list of one-entry maps", "Environment variables of the workers."
    )
    python_interpreter_path: str | None = Field(
        None, description="Python that runs the workers there; null is the driver's own."
    )


class HardwareConfig(Section):
    """Hardware other than accelerators, such as robots."""

    type: str = Field(..., description="Registered hardware type, such as a robot's name.")
    configs: list[dict[str, Any]] = Field(
        default_factory=list,
        description="One map per device; `node_rank` says where it is, the rest is its own.",
    )


class NodeGroupConfig(Section):
    """Nodes that are addressed together under one label."""

    label: str = Field(..., description="Name used by `node_group` in a placement; unique.")
    node_ranks: Any = free(
        ..., "node ranks", "Nodes in the group: `0-7`, `0,2`, a list of ranks or `all`."
    )
    env_configs: list[NodeEnvConfig] = Field(
        default_factory=list, description="Environment of workers, by nodes of this group."
    )
    hardware: HardwareConfig | None = Field(
        None, description="Devices that resource ranks of this group count; null is accelerators."
    )
    hardware_type: str | None = Field(
        None, description="Shorter form of `hardware` for devices that need no configs."
    )
    ignore_hardware: bool = Field(
        False, description="Count nodes, not devices, as the resource ranks of this group."
    )


class TimeoutsConfig(Section):
    """Deadlines of every wait in the framework, in seconds."""

    nodes: Float = Field(300, gt=0, description="Until all nodes have joined (s).")
    launch: Float = Field(300, gt=0, description="Until every worker of a group has started (s).")
    registry: Float = Field(60, gt=0, description="Until the registry answers (s).")
    call: Float | None = Field(
        None, gt=0, description="Until a group call returns (s); null waits as long as it runs."
    )
    recv: Float | None = Field(
        1800, gt=0, description="Until a message from a peer arrives (s); null is no deadline."
    )
    channel: Float | None = Field(
        1800, gt=0, description="Until a channel can be read or written (s); null is no deadline."
    )
    lock: Float | None = Field(
        1800, gt=0, description="Until a device lock is free (s); null is no deadline."
    )
    reconnect: Float = Field(
        10,
        gt=0,
        le=15,
        description="A link between two machines may be down for this long without harm (s); Ray "
        "itself gives a machine up after about 15.",
    )
    shutdown: Float = Field(20, gt=0, description="For workers to stop before they are killed (s).")


class ClusterConfig(Section):
    """Machines, devices, and the place of every component on them."""

    num_nodes: Int = Field(1, ge=1, le=100_000, description="Machines that the run uses.")
    num_gpus_per_node: Int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Accelerators on each machine; null finds out. Older form, rarely needed.",
    )
    address: str | None = Field(
        None,
        description="Address of a running Ray (`host:port`); null uses RAY_ADDRESS or starts one.",
    )
    component_placement: dict[str, Any] = Field(
        default_factory=dict,
        description="Component (or several, with commas) to resource ranks: `actor,rollout: 0-7`.",
    )
    node_groups: list[NodeGroupConfig] = Field(
        default_factory=list, description="Labelled groups of nodes that placements can name."
    )
    cpu_slots_per_node: Int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Resource ranks per machine without accelerators; null is 8 on one machine.",
    )
    dashboard: bool = Field(False, description="Start Ray's web dashboard with a Ray of our own.")
    timeouts: TimeoutsConfig = Field(
        default_factory=TimeoutsConfig, description="Deadlines of every wait, in seconds."
    )
    port_range: str | None = Field(
        None,
        description="Ports that processes of the run listen on, on every machine: `30000-30999`; "
        "null is any free port.",
    )
    encryption: bool = Field(
        False,
        description="Encrypt what processes on different machines send each other, by TLS 1.3; "
        "not what NCCL, gloo and Ray send.",
    )
    log_dir: str | None = Field(
        None, description="Folder for logs and failure cards; null is the run's own folder."
    )
