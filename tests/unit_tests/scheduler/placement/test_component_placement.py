"""Component placements on invented clusters, and the map that shows them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rlinf.config.placement import PlacementError
from rlinf.scheduler import current
from rlinf.scheduler.hardware import AcceleratorType
from rlinf.scheduler.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    NodePlacementStrategy,
    PlacementMode,
    format_placement_map,
)
from rlinf.scheduler.topology.topology import assume_topology

SEED = {"actor": "0-7", "env": "0-3", "rollout": "4-7"}


def place(
    placement: dict, nodes: int = 1, gpus: int = 0, cls: type = ComponentPlacement, **more: object
) -> ComponentPlacement:
    cfg = {"cluster": {"num_nodes": nodes, "component_placement": placement, **more}}
    return cls(OmegaConf.create(cfg), assume_topology(cfg["cluster"], gpus))


def test_the_seeds_on_a_laptop_without_gpus() -> None:
    placement = place(SEED, cls=HybridComponentPlacement)
    assert placement.components == ["actor", "env", "rollout"]
    assert [placement.get_world_size(name) for name in placement.components] == [8, 4, 4]
    assert placement.get_hardware_ranks("rollout") == [4, 5, 6, 7]
    assert placement.placement_mode is PlacementMode.HYBRID
    rollout = placement.get_strategy("rollout").get_placement(placement.topology)
    assert [p.local_hardware_ranks for p in rollout] == [(4,), (5,), (6,), (7,)]
    assert [p.local_rank for p in rollout] == [0, 1, 2, 3]
    assert {p.accelerator_type for p in rollout} == {AcceleratorType.NO_ACCEL}
    assert {p.visible_accelerators for p in rollout} == {()}


def test_the_seeds_on_eight_gpus() -> None:
    placement = place(SEED, gpus=8, cls=HybridComponentPlacement)
    rollout = placement.get_strategy("rollout").get_placement(placement.topology)
    assert [p.visible_accelerators for p in rollout] == [("4",), ("5",), ("6",), ("7",)]


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("gpus", [0, 4])
def test_all_uses_every_resource_once(nodes: int, gpus: int) -> None:
    placement = place({"actor": "all"}, nodes, gpus)
    per_node = gpus or (8 if nodes == 1 else 1)
    assert placement.get_world_size("actor") == nodes * per_node
    placements = placement.get_placement("actor")
    assert [p.cluster_node_rank for p in placements] == [
        n for n in range(nodes) for _ in range(per_node)
    ]
    assert {p.local_world_size for p in placements} == {per_node}
    by_node = gpus == 0 and nodes > 1
    kind = NodePlacementStrategy if by_node else FlexiblePlacementStrategy
    assert type(placement.get_strategy("actor")) is kind


def test_node_groups() -> None:
    groups = [
        {"label": "train", "node_ranks": "2-3"},
        {"label": "sim", "node_ranks": "0-1", "ignore_hardware": True},
    ]
    placement = place(
        {
            "actor": {"node_group": "train", "placement": "0-3"},
            "env": {"node_group": ["sim"], "placement": "0-1:0-3"},
            "both": {"node_group": "sim,train", "placement": "1-2"},
            "agent": {"node_group": "node", "placement": 3},
        },
        nodes=4,
        gpus=2,
        node_groups=groups,
    )
    assert [p.cluster_node_rank for p in placement.get_placement("actor")] == [2, 2, 3, 3]
    assert [p.cluster_node_rank for p in placement.get_placement("env")] == [0, 0, 1, 1]
    assert [p.cluster_node_rank for p in placement.get_placement("both")] == [1, 2]
    assert [p.node_group_label for p in placement.get_placement("both")] == ["sim", "train"]
    assert [p.cluster_node_rank for p in placement.get_placement("agent")] == [3]


@pytest.mark.parametrize(
    ("placement", "mode"),
    [
        ({"a,b": "0-3"}, PlacementMode.COLLOCATED),
        ({"a": "0-3", "b": "4-7"}, PlacementMode.DISAGGREGATED),
        ({"a": "0-3", "b": "3-7"}, PlacementMode.HYBRID),
    ],
)
def test_mode(placement: dict, mode: PlacementMode) -> None:
    assert place(placement).placement_mode is mode


def test_mistakes_are_found_at_once_and_together() -> None:
    with pytest.raises(PlacementError) as caught:
        place({"a": "0-8", "b": "0-3:1-4", "c": 0})
    assert [error.path[-1] for error in caught.value.errors] == ["a", "b"]


def test_a_process_on_two_nodes_points_at_the_piece() -> None:
    with pytest.raises(PlacementError) as caught:
        place({"a": "0,3-6:1-2"}, nodes=2, gpus=4)
    assert str(caught.value).splitlines()[:3] == [
        "cluster.component_placement.a: process 1 would use ranks 3-4 on nodes 0-1",
        "    0,3-6:1-2",
        "      ^^^^^^^",
    ]
    assert place({"a": "0,3-6:1-2"}, nodes=1, gpus=8).get_world_size("a") == 3


def test_unknown_component() -> None:
    with pytest.raises(PlacementError, match="'acter' has no placement(.|\n)*mean 'actor'"):
        place(SEED).get_strategy("acter")


def test_config_without_cluster() -> None:
    with pytest.raises(PlacementError, match="no cluster section"):
        ComponentPlacement({}, assume_topology({}, 0))


def test_the_topology_of_the_run_is_used_when_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match="belongs to no run: create a Cluster first"):
        HybridComponentPlacement({"cluster": {"component_placement": SEED}})
    known = {"topology": assume_topology({}, 8)}
    registry = SimpleNamespace(ask=lambda operation, key: known[key])
    monkeypatch.setattr(current, "_current", SimpleNamespace(registry=registry))
    placement = HybridComponentPlacement({"cluster": {"component_placement": SEED}})
    assert placement.topology is known["topology"]


def test_public_path() -> None:
    from rlinf.utils import placement as public

    assert public.HybridComponentPlacement is HybridComponentPlacement
    assert public.ModelParallelComponentPlacement.__name__ == "ModelParallelComponentPlacement"
    with pytest.raises(AttributeError, match="'rlinf.utils.placement' has no attribute 'nothing'"):
        public.nothing  # noqa: B018


# -- the map ---------------------------------------------------------------------------------


def test_map_of_a_laptop() -> None:
    shown = format_placement_map(place({"actor": "0-1", "env": "1:0-1", "x": "2-3:0"}))
    assert shown == (
        "1 node, no accelerators, 8 CPU slots per node\n"
        "\n"
        "component  rank  node  devices\n"
        "actor      0     0     cpu slot 0\n"
        "           1     0     cpu slot 1\n"
        "env        0     0     cpu slot 1\n"
        "           1     0     cpu slot 1\n"
        "x          0     0     cpu slot 2-3\n"
        "\n"
        "mode: hybrid\n"
        "  actor + env share node 0 cpu slot 1"
    )


def test_map_collapses_many_processes() -> None:
    placement = {
        "actor": "all",
        "env": "0-15:0-31",
        "rollout": "0-63:0-31",
        "agent": {"node_group": "node", "placement": "all:0-23"},
    }
    shown = format_placement_map(place(placement, nodes=8, gpus=8)).splitlines()
    assert shown == [
        "8 nodes, 64 accelerators (assumed)",
        "",
        "component  rank  node  devices",
        "actor      0-63  0-7   gpu 0-7 of each node",
        "env        0-31  0-1   gpu 0-7 of each node, 2 processes on each",
        "rollout    0-31  0-7   gpu 0-7 of each node, 2 per process",
        "agent      0-23  0-7   -, 3 processes",
        "",
        "mode: hybrid",
        "  actor + env + rollout share nodes 0-1 gpu 0-7",
        "  actor + rollout share nodes 2-7 gpu 0-7",
    ]


def test_map_says_when_nothing_is_shared() -> None:
    shown = format_placement_map(place({"a": "0-1", "b": "2-3"}, nodes=4))
    assert shown.startswith("4 nodes, no accelerators: ranks are nodes\n")
    assert shown.endswith("mode: disaggregated\n  no component shares devices with another")
