"""A run in this process alone, in the place of a connection to Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.inline.actors import InlineActor, InlineBackend
from rlinf.scheduler.spec import LaunchOptions, WorkerSpec
from rlinf.scheduler.topology.node import AliveNode
from rlinf.scheduler.worker.host import actor_class

_HERE = "this process"


class InlineSession:
    """Stands for the one node of a run whose workers are threads of this process.

    Attributes:
        local: whether this node is the only one, as it is.
        has_own_ray: whether a Ray was started for it; one that runs in this process is another's.
        backend: how calls come back.
    """

    local = True
    has_own_ray = False

    def __init__(self) -> None:
        self.backend = InlineBackend()
        self.backend.turns.begin()
        self._open = True

    def this_node(self) -> str:
        """Return the id of the node of this process."""
        return _HERE

    def alive_nodes(self) -> list[AliveNode]:
        """Return the one node."""
        return [AliveNode(_HERE, "127.0.0.1", is_head=True)]

    def wait_for_nodes(
        self, count: int, deadline: float, missing: Callable[[list[AliveNode]], str]
    ) -> list[AliveNode]:
        """Return the one node.

        Raises:
            ClusterError: more are asked for.
        """
        if count > 1:
            raise ClusterError(
                f"cluster.num_nodes is {count}, but a run in one process (RLINF_DEBUG=inline) has "
                "one node; set cluster.num_nodes: 1"
            )
        return self.alive_nodes()

    def start_actors(
        self,
        specs: list[WorkerSpec],
        worker_cls: type,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        options: LaunchOptions,
    ) -> list[InlineActor]:
        """Make the worker of a group, which is not yet built.

        Raises:
            ClusterError: there are several.
        """
        import cloudpickle

        if len(specs) > 1:
            group = specs[0].address.root_group_name
            raise ClusterError(
                f"group {group!r} has {len(specs)} ranks, but a run in one process "
                "(RLINF_DEBUG=inline) has one rank per group; place the component on one resource, "
                "such as cluster.component_placement.env=0"
            )
        payload = cloudpickle.dumps((worker_cls, *arguments))
        actors = []
        for given in specs:
            spec = dataclasses.replace(given, log_to_file=False, record_crashes=False)
            actor = InlineActor(actor_class(worker_cls), spec, payload, options, self.backend)
            self.backend.actors[spec.name] = actor
            actors.append(actor)
        return actors

    def close(self) -> None:
        """Let threads of this process run as they like again."""
        if self._open:
            self._open = False
            self.backend.turns.end()
