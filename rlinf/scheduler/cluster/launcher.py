"""Starts the actors of a group where a placement says, each told who it is."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from rlinf.config.placement.resources import ACCELERATOR, CPU, NODE
from rlinf.config.plugins import worker_extensions
from rlinf.scheduler.address import WorkerAddress
from rlinf.scheduler.cluster.ray_session import on_node
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.hardware import AcceleratorType, AcceleratorUtil
from rlinf.scheduler.placement.base import Placement
from rlinf.scheduler.spec import LaunchOptions, RunSpec, WorkerSpec
from rlinf.scheduler.topology.node import NodeInfo
from rlinf.scheduler.topology.topology import ClusterTopology
from rlinf.scheduler.worker.host import actor_class

_LARGE_PAYLOAD = 64 * 1024
_PATH_LIKE = (
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "PATH",
    "LIBRARY_PATH",
    "CMAKE_PREFIX_PATH",
    "PKG_CONFIG_PATH",
    "CPATH",
)


def worker_specs(
    run: RunSpec,
    topology: ClusterTopology,
    placements: list[Placement],
    group: str,
    class_name: str,
    driver_env: Mapping[str, str],
    options: LaunchOptions,
) -> list[WorkerSpec]:
    """One spec per rank.

    Args:
        run: what all processes share.
        topology: the nodes.
        placements: where each rank goes.
        group: name of the group.
        class_name: name of the worker's class.
        driver_env: variables of the driver that all nodes get.
        options: how they are started.
    """
    specs = []
    for placement in placements:
        node = topology.nodes[placement.cluster_node_rank]
        vendor = AcceleratorType(placement.accelerator_type)
        local = _own_accelerators(placement)
        ids = topology.accelerator_ranks[node.node_rank]
        own = [ids[device] for device in local]
        specs.append(
            WorkerSpec(
                run=run,
                address=WorkerAddress(group, placement.rank),
                world_size=len(placements),
                node_rank=node.node_rank,
                node_ip=node.comm_ips[0],
                comm_ips=list(node.comm_ips),
                env=_worker_env(topology, node, placement, group, len(placements), driver_env),
                accelerator_type=vendor.value,
                accelerator_model=node.accelerator_model,
                accelerator_rank=local[0] if local else -1,
                accelerators=own,
                visible=own if placement.isolate_accelerator else list(ids),
                isolated=placement.isolate_accelerator,
                hardware_infos=_robots(node, placement),
                lock_keys=_lock_keys(placement),
                class_name=class_name,
                record_crashes=options.record_crashes,
                log_to_file=options.log_to_file,
            )
        )
    return specs


def _own_accelerators(placement: Placement) -> list[int]:
    """Local ranks of the accelerators that were given to a worker."""
    return list(placement.local_hardware_ranks) if placement.resource_kind == ACCELERATOR else []


def _robots(node: NodeInfo, placement: Placement) -> list[Any]:
    """Hardware other than accelerators that was given to a worker."""
    if placement.resource_kind in (ACCELERATOR, CPU, NODE):
        return []
    infos = node.get_hw_infos(placement.resource_kind)
    return [infos[rank] for rank in placement.local_hardware_ranks]


def _lock_keys(placement: Placement) -> list[str]:
    """Return the names of the resources of a worker, equal for workers that share one."""
    place = f"node {placement.cluster_node_rank} {placement.resource_kind}"
    return [f"{place} {rank}" for rank in placement.local_hardware_ranks]


def _worker_env(
    topology: ClusterTopology,
    node: NodeInfo,
    placement: Placement,
    group: str,
    world_size: int,
    driver_env: Mapping[str, str],
) -> dict[str, str]:
    vendor = AcceleratorType(placement.accelerator_type)
    isolated = placement.isolate_accelerator and bool(_own_accelerators(placement))
    env = dict(driver_env)
    env.update(node.env_vars)
    group_info = topology.node_groups[placement.node_group_label]
    env.update(group_info.get_node_env_vars(node.node_rank))
    env = {k: _merge_path(k, v, node.default_env_vars) for k, v in env.items()}
    env.update(_interfaces(vendor, node, env))
    env.update(_extensions(node, env))
    env.update(
        {
            "RLINF_TORCH_DEVICE": AcceleratorUtil.get_torch_device(vendor),
            "GROUP_NAME": group,
            "WORKER_NAME": f"{group}:{placement.rank}",
            "WORLD_SIZE": str(world_size),
            "RANK": str(placement.rank),
            "NODE_RANK": str(placement.placement_node_rank),
            "CLUSTER_NODE_RANK": str(node.node_rank),
            "NODE_LOCAL_RANK": str(placement.local_rank),
            "NODE_LOCAL_WORLD_SIZE": str(placement.local_world_size),
            "LOCAL_ACCELERATOR_RANK": str(placement.local_accelerator_rank),
            # A worker that sees only its own devices finds them from 0 on, as if it were alone.
            "LOCAL_RANK": "0" if isolated else str(placement.local_rank),
            "LOCAL_WORLD_SIZE": "1" if isolated else str(placement.local_world_size),
            "ACCELERATOR_TYPE": vendor.value,
            "ISOLATE_ACCELERATOR": str(int(placement.isolate_accelerator)),
            "LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.local_hardware_ranks)),
            "NODE_GROUP_LABEL": placement.node_group_label,
        }
    )
    env.update(placement.device_env)
    env["VISIBLE_DEVICES"] = ",".join(placement.visible_accelerators)
    return env


def _interfaces(vendor: AcceleratorType, node: NodeInfo, env: Mapping[str, str]) -> dict[str, str]:
    """Network interface of torch's back-ends: RLINF_COMM_NET_DEVICES, else loopback if alone."""
    variable = ClusterEnvVar.COMM_NET_DEVICES.full_name
    wanted = node.default_env_vars.get(variable) or env.get(variable)
    if wanted is None and node.node_ip == "127.0.0.1":
        wanted = "lo"
    if wanted is None:
        return {}
    names = AcceleratorUtil.get_socket_interface_variables(vendor)
    return {n: wanted for n in names if n not in env and n not in node.default_env_vars}


def _extensions(node: NodeInfo, env: Mapping[str, str]) -> dict[str, str]:
    """Modules that a worker imports: those of its node, and those that the config names."""
    name = ClusterEnvVar.EXT_MODULE.full_name
    wanted = worker_extensions(env.get(name, node.default_env_vars.get(name, "")))
    return {name: wanted} if wanted else {}


def _merge_path(name: str, value: str, existing: Mapping[str, str]) -> str:
    """New entries of a search path go before those that the node has."""
    mode = ClusterEnvVar.PATH_ENV_MERGE_MODE.get("append")
    if name not in _PATH_LIKE or mode == "override" or not existing.get(name):
        return value
    entries = [*value.split(os.pathsep), *existing[name].split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))


def start_actors(
    specs: list[WorkerSpec],
    worker_cls: type,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    topology: ClusterTopology,
    placements: list[Placement],
    options: LaunchOptions,
) -> list[Any]:
    """Start one actor of Ray's per spec, without waiting for them.

    Args:
        specs: what each worker is told.
        worker_cls: their class.
        arguments: of its constructor.
        topology: the nodes.
        placements: where each goes.
        options: how they are started.
    """
    import cloudpickle
    import ray

    payload: Any = cloudpickle.dumps((worker_cls, *arguments))
    if len(payload) > _LARGE_PAYLOAD:
        payload = ray.put(payload)
    remote = ray.remote(actor_class(worker_cls))
    actors = []
    for spec, placement in zip(specs, placements, strict=True):
        ray_id = topology.nodes[spec.node_rank].ray_id
        label, node_rank = placement.node_group_label, placement.cluster_node_rank
        interpreter = topology.node_groups[label].get_node_python_interpreter_path(node_rank)
        settings: dict[str, Any] = {
            "name": spec.name,
            "namespace": spec.run.namespace,
            "num_cpus": 0,
            "scheduling_strategy": on_node(ray_id),
            "max_restarts": options.restarts,
        }
        if options.max_concurrency is not None:
            settings["max_concurrency"] = options.max_concurrency
        environment = process_environment(spec.env, interpreter)
        if environment:
            settings["runtime_env"] = environment
        actors.append(remote.options(**settings).remote(spec, payload))
    return actors


def process_environment(env: Mapping[str, str], interpreter: str | None) -> dict[str, Any]:
    """Return the part of the environment that must be there before the process starts.

    Everything else is set inside the process, before anything of the user's is imported: a process
    that needs nothing special can be one that Ray has ready.
    """
    early = {k: v for k, v in env.items() if k.startswith(("LD_", "PYTHON", "MALLOC_", "GLIBC_"))}
    environment: dict[str, Any] = {"env_vars": early} if early else {}
    if interpreter:
        # Ray puts it into a line for a shell.
        environment["py_executable"] = shlex.quote(interpreter)
    return environment
