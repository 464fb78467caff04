"""Placement of model-parallel training and generation: collocated or disaggregated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Any

from rlinf.config.placement import PlacementError, format_ranks
from rlinf.config.placement.components import PATH
from rlinf.config.placement.errors import Source, show_yaml
from rlinf.scheduler.placement.base import PlacementStrategy
from rlinf.scheduler.placement.component import ComponentPlacement, PlacementMode
from rlinf.scheduler.placement.packed import PackedPlacementStrategy


class RolloutSyncMode(str, Enum):
    """How new weights reach the rollout."""

    COLLOCATED = "collocated"
    """On the device, between processes that share it."""
    DISAGGREGATED = "disaggregated"
    """From device to device."""


@dataclass(frozen=True)
class ParallelSizes:
    """How the resources of a component hold its model."""

    world: int
    """Number of resources."""
    tp: int
    """Tensor parallel: resources that share one layer."""
    pp: int
    """Pipeline parallel: resources that share the stack of layers."""
    dp: int
    """Data parallel: copies of the model."""


_REQUIRED = ("rollout", "reward")


def _size(component: str, field: str) -> property:
    doc = f"``{field}`` of the {component}; see ``ParallelSizes``."
    return property(lambda self: getattr(self.get_sizes(component), field), doc=doc)


class ModelParallelComponentPlacement(ComponentPlacement):
    """Actor, rollout and their helpers, each on a run of resources; for reasoning and agents.

    The rollout has one process for each tensor-parallel group of its own.
    Collocated: actor and rollout use the same resources, or one of them a part of the other's.
    Where they use the same and the actor's groups are larger, the rollout's are strided, so that
    each rollout shard lies on a device that already holds part of it.
    Disaggregated: actor and rollout have resources of their own; or there is no actor.
    Dedicated inference and critics have resources of their own in both.
    """

    actor_world_size = _size("actor", "world")
    actor_tp_size = _size("actor", "tp")
    actor_pp_size = _size("actor", "pp")
    actor_dp_size = _size("actor", "dp")
    rollout_world_size = _size("rollout", "world")
    rollout_tp_size = _size("rollout", "tp")
    rollout_pp_size = _size("rollout", "pp")
    rollout_dp_size = _size("rollout", "dp")
    inference_world_size = _size("inference", "world")
    inference_tp_size = _size("inference", "tp")
    inference_pp_size = _size("inference", "pp")
    inference_dp_size = _size("inference", "dp")
    critic_world_size = _size("critic", "world")
    critic_tp_size = _size("critic", "tp")
    critic_pp_size = _size("critic", "pp")
    critic_dp_size = _size("critic", "dp")
    critic_inference_world_size = _size("critic_inference", "world")
    critic_inference_tp_size = _size("critic_inference", "tp")
    critic_inference_pp_size = _size("critic_inference", "pp")
    critic_inference_dp_size = _size("critic_inference", "dp")

    def __init__(self, cfg: Mapping[str, Any], cluster: Any = None) -> None:
        """Detect the mode and check the parallel sizes against the resources.

        Args:
            cfg: The config; reads ``cluster``, ``algorithm.recompute_logprobs`` and the parallel
                sizes of the components.
            cluster: See ``ComponentPlacement``.

        Raises:
            PlacementError: If the components do not fit one of the two modes.
        """
        super().__init__(cfg, cluster)
        # An evaluation has no actor.
        required = _REQUIRED if self._cfg.get("actor") is None else ("actor", *_REQUIRED)
        missing = [name for name in required if name not in self._specs]
        if missing:
            raise PlacementError(
                PATH,
                f"has no {', '.join(missing)}",
                allowed=f"the components {', '.join(required)}; optional are inference (or"
                " actor_inference), critic and critic_inference",
                fix=f"add e.g. {missing[0]}: 0",
            )
        if {"inference", "actor_inference"} <= set(self._specs):
            raise PlacementError(PATH, "has both inference and actor_inference", fix="keep one")
        self._inference = "actor_inference" if "actor_inference" in self._specs else "inference"
        names = ("actor", "rollout", self._inference, "critic", "critic_inference")
        self._parallel = [name for name in names if name in self._specs]
        self._sizes = {name: self._read_sizes(name) for name in self._parallel}
        self._mode = self._detect_mode()
        self._strategies = {name: self._make_strategy(name) for name in self._parallel}

    @property
    def placement_mode(self) -> PlacementMode:
        """Collocated or disaggregated."""
        return self._mode

    @property
    def is_collocated(self) -> bool:
        """Whether actor and rollout share resources."""
        return self._mode is PlacementMode.COLLOCATED

    @property
    def is_disaggregated(self) -> bool:
        """Whether every component has resources of its own."""
        return self._mode is PlacementMode.DISAGGREGATED

    @property
    def is_pipeline(self) -> bool:
        """Whether stages run at the same time on different resources."""
        return self.is_disaggregated

    @property
    def rollout_sync_mode(self) -> RolloutSyncMode:
        """How new weights reach the rollout."""
        return RolloutSyncMode(self._mode.value)

    @property
    def has_dedicated_inference(self) -> bool:
        """Whether log-probabilities are recomputed on resources of their own."""
        return self._inference in self._specs

    @property
    def has_dedicated_critic_inference(self) -> bool:
        """Whether values are computed on resources of their own."""
        return "critic_inference" in self._specs

    def get_strategy(self, name: str) -> PlacementStrategy:
        """Return the strategy that places a component."""
        return self._strategies.get(name) or super().get_strategy(name)

    def get_sizes(self, name: str) -> ParallelSizes:
        """Parallel sizes of a component; ``inference`` also means ``actor_inference``."""
        name = self._inference if name == "inference" else name
        self.get_spec(name)
        return self._sizes[name]

    def _read_sizes(self, name: str) -> ParallelSizes:
        spec = self.get_spec(name)
        ranks = self.get_hardware_ranks(name)
        if ranks != list(range(ranks[0], ranks[-1] + 1)):
            raise spec.source.error(
                f"the ranks of {name} have gaps",
                allowed="one run of ranks, as 0-7",
                fix=f"use {ranks[0]}-{ranks[0] + len(ranks) - 1}",
            )
        if name == "rollout":
            keys = ("tensor_parallel_size", "pipeline_parallel_size")
        else:
            keys = tuple(
                f"model.{kind}_parallel_size"
                for kind in ("tensor_model", "pipeline_model", "context")
            )
        sizes = [self._read_size(f"{name}.{key}") for key in keys]
        copy = 1
        for size in sizes:
            copy *= size
        if len(ranks) % copy:
            arithmetic = " * ".join(map(str, sizes))
            raise spec.source.error(
                f"{len(ranks)} resources do not hold whole copies of the model: {arithmetic} ="
                f" {copy}, and {len(ranks)} = {len(ranks) // copy} * {copy} + {len(ranks) % copy}",
                allowed=f"a multiple of {copy} resources ({', '.join(keys)} of {name})",
            )
        return ParallelSizes(len(ranks), sizes[0], sizes[1], len(ranks) // copy)

    def _read_size(self, path: str) -> int:
        value: Any = self._cfg
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Source(path, show_yaml(value)).error(
                "is not a parallel size", allowed="a whole number from 1 upwards"
            )
        return value

    def _detect_mode(self) -> PlacementMode:
        if self._cfg["cluster"].get("auto_scheduler"):
            raise PlacementError(
                "cluster.auto_scheduler", "is not supported", fix="place the components yourself"
            )
        used = {name: self.devices(name) for name in self._parallel}
        for first, second in combinations(self._parallel, 2):
            same = used[first] == used[second]
            if {first, second} == {"actor", "rollout"}:
                if not (used[first] <= used[second] or used[second] <= used[first]):
                    self._check_disjoint(first, second)
            elif not (same and {first, second} == {"actor", "critic"}):
                self._check_disjoint(first, second)
        algorithm = self._cfg.get("algorithm") or {}
        if self.has_dedicated_inference and not algorithm.get("recompute_logprobs"):
            raise self.get_spec(self._inference).source.error(
                f"{self._inference} would have no work: it recomputes log-probabilities",
                allowed="inference together with algorithm.recompute_logprobs: true",
                fix=f"set it, or remove {self._inference}",
            )
        shared = "actor" in used and used["actor"] & used["rollout"]
        return PlacementMode.COLLOCATED if shared else PlacementMode.DISAGGREGATED

    def _check_disjoint(self, first: str, second: str) -> None:
        shared = self.devices(first) & self.devices(second)
        if shared:
            raise self.get_spec(second).source.error(
                f"{second} shares {len(shared)} of its {len(self.devices(second))} resources with"
                f" {first} ({self.get_spec(first).text})",
                allowed="actor and rollout on the same ranks, or one on a part of the other's"
                " (collocated), or no shared ranks (disaggregated); others on ranks of their own",
            )

    def _make_strategy(self, name: str) -> PlacementStrategy:
        spec, sizes = self.get_spec(name), self._sizes[name]
        per_process, stride = 1, 1
        if name == "rollout":
            per_process = sizes.tp * sizes.pp
            actor_tp = self._sizes["actor"].tp if "actor" in self._sizes else 1
            same = self.is_collocated and self.devices("actor") == self.devices("rollout")
            if same and actor_tp > sizes.tp:
                if actor_tp % sizes.tp:
                    raise spec.source.error(
                        f"rollout shards do not line up with the actor's: {actor_tp} ="
                        f" {actor_tp // sizes.tp} * {sizes.tp} + {actor_tp % sizes.tp}",
                        allowed=f"a rollout.tensor_parallel_size that divides {actor_tp}",
                    )
                stride = actor_tp // sizes.tp
        ranks = self.get_hardware_ranks(name)
        try:
            strategy = PackedPlacementStrategy(
                ranks[0], ranks[-1], per_process, stride, spec.node_groups
            )
            strategy.get_placement(self.topology)
        except PlacementError as error:
            raise spec.source.error(error.problem, None, error.allowed, error.fix) from error
        chosen = strategy.ranks_of_processes()
        written = [list(plan.resources) for plan in self._plans[name]]
        if any(segment.processes for segment in spec.segments) and written != chosen:
            shown = ", ".join(format_ranks(process) for process in chosen[:4])
            raise spec.source.error(
                f"names {len(written)} processes, but the parallel sizes of {name} make"
                f" {len(chosen)}: on {shown}{', ...' if len(chosen) > 4 else ''}",
                allowed="resource ranks alone; the parallel sizes decide the processes",
                fix="remove the process ranks",
            )
        return strategy
