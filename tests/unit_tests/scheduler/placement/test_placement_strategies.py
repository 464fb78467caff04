"""Strategies on invented clusters of 1, 2 and 4 nodes, with and without accelerators."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf.config.placement import PlacementError
from rlinf.scheduler.hardware import AcceleratorType, accelerator_resource
from rlinf.scheduler.placement import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
)
from rlinf.scheduler.topology.node import NodeInfo
from rlinf.scheduler.topology.topology import ClusterTopology, assume_topology


def cluster(nodes: int = 1, gpus: int = 0, **config: object) -> ClusterTopology:
    return assume_topology({"num_nodes": nodes, **config}, gpus)


def where(placements: list[Placement]) -> list[tuple[int, tuple[int, ...]]]:
    assert [p.rank for p in placements] == list(range(len(placements)))
    return [(p.cluster_node_rank, p.local_hardware_ranks) for p in placements]


# -- packed ----------------------------------------------------------------------------------


def test_packed_on_one_node() -> None:
    placements = PackedPlacementStrategy(2, 5).get_placement(cluster(1, 8))
    assert where(placements) == [(0, (2,)), (0, (3,)), (0, (4,)), (0, (5,))]
    assert placements[1] == Placement(
        rank=1,
        cluster_node_rank=0,
        placement_node_rank=0,
        local_accelerator_rank=3,
        accelerator_type=AcceleratorType.NV_GPU,
        local_rank=1,
        local_world_size=4,
        visible_accelerators=("3",),
        isolate_accelerator=True,
        local_hardware_ranks=(3,),
        node_group_label="cluster",
    )


def test_packed_over_nodes() -> None:
    placements = PackedPlacementStrategy(4, 15, 2).get_placement(cluster(4, 4))
    assert where(placements) == [
        (1, (0, 1)), (1, (2, 3)), (2, (0, 1)), (2, (2, 3)), (3, (0, 1)), (3, (2, 3)),
    ]  # fmt: skip
    assert [p.placement_node_rank for p in placements] == [0, 0, 1, 1, 2, 2]
    assert [p.local_rank for p in placements] == [0, 1] * 3
    assert {p.local_world_size for p in placements} == {2}


def test_packed_stride_interleaves() -> None:
    placements = PackedPlacementStrategy(0, 3, 2, stride=2).get_placement(cluster(1, 4))
    assert where(placements) == [(0, (0, 2)), (0, (1, 3))]
    assert [p.visible_accelerators for p in placements] == [("0", "2"), ("1", "3")]
    ranks = PackedPlacementStrategy(0, 7, 2, stride=2).ranks_of_processes()
    assert ranks == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_packed_on_cpu_slots() -> None:
    placements = PackedPlacementStrategy(0, 7).get_placement(cluster(2, 0, cpu_slots_per_node=4))
    assert where(placements) == [(n, (s,)) for n in range(2) for s in range(4)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 6, 2), "7 resources do not divide: 7 = 3 * (2 per process * stride 1) + 1"),
        ((0, 5, 2, 2), "6 = 1 * (2 per process * stride 2) + 2"),
        ((3, 1), "ranks 3 to 1 are not a range"),
        ((-1, 1), "ranks -1 to 1 are not a range"),
        ((0, 1, 0), "must be 1 or more"),
    ],
)
def test_packed_arguments(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(PlacementError) as caught:
        PackedPlacementStrategy(*arguments)
    assert words in str(caught.value)


def test_packed_does_not_run_past_the_end() -> None:
    with pytest.raises(PlacementError, match="rank 8 is out of range\n.*8 resources, ranks 0-7"):
        PackedPlacementStrategy(0, 8).get_placement(cluster(1, 8))


def test_a_process_does_not_cross_nodes() -> None:
    with pytest.raises(PlacementError, match="process 1 would use ranks 3-5 of nodes 0-1"):
        PackedPlacementStrategy(0, 5, 3).get_placement(cluster(2, 4))


# -- flexible --------------------------------------------------------------------------------


def test_flexible_sorts_and_shares() -> None:
    strategy = FlexiblePlacementStrategy([[5, 4], [1, 0], [0]])
    placements = strategy.get_placement(cluster(2, 4))
    assert where(placements) == [(0, (0, 1)), (0, (0,)), (1, (0, 1))]
    assert [p.local_rank for p in placements] == [0, 1, 0]
    assert [p.local_world_size for p in placements] == [2, 2, 1]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "there are no processes"),
        ([[0], []], "a process has no resources"),
        ([[0, 0]], "a process has a rank twice"),
    ],
)
def test_flexible_arguments(ranks: list[list[int]], words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        FlexiblePlacementStrategy(ranks)


def test_flexible_does_not_cross_nodes() -> None:
    with pytest.raises(PlacementError, match="a process lives on one node"):
        FlexiblePlacementStrategy([[3, 4]]).get_placement(cluster(2, 4))


# -- nodes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [0, 2])
def test_node_strategy(gpus: int) -> None:
    placements = NodePlacementStrategy([3, 0, 0]).get_placement(cluster(4, gpus))
    assert [p.cluster_node_rank for p in placements] == [0, 0, 3]
    assert [p.placement_node_rank for p in placements] == [0, 0, 1]
    assert [p.local_rank for p in placements] == [0, 1, 0]
    for placement in placements:
        assert placement.visible_accelerators == tuple(map(str, range(gpus)))
        assert placement.local_accelerator_rank == -1
        assert placement.local_hardware_ranks == ()
        assert not placement.isolate_accelerator


def test_node_strategy_wants_nodes() -> None:
    with pytest.raises(PlacementError, match="at least one node rank"):
        NodePlacementStrategy([])
    with pytest.raises(PlacementError, match="rank 2 is out of range"):
        NodePlacementStrategy([2]).get_placement(cluster(2, 8))


GROUPS = [
    {"label": "a", "node_ranks": 1},
    {"label": "b", "node_ranks": 0},
    {"label": "ab", "node_ranks": "0-1"},
    {
        "label": "arms",
        "node_ranks": 1,
        "hardware": {
            "type": "Franka",
            "configs": [{"node_rank": 1, "robot_ip": "x"}, {"node_rank": 1, "robot_ip": "y"}],
        },
    },
]


def test_groups_are_numbered_in_the_order_given() -> None:
    topology = cluster(2, 2, node_groups=GROUPS)
    placements = PackedPlacementStrategy(0, 3, node_group=["a", "b"]).get_placement(topology)
    assert where(placements) == [(1, (0,)), (1, (1,)), (0, (0,)), (0, (1,))]
    assert [p.node_group_label for p in placements] == ["a", "a", "b", "b"]
    by_node = NodePlacementStrategy([0, 1], ["a", "b"]).get_placement(topology)
    assert [p.cluster_node_rank for p in by_node] == [1, 0]


def test_groups_that_overlap_or_do_not_exist() -> None:
    topology = cluster(2, 2, node_groups=GROUPS)
    with pytest.raises(PlacementError, match="node 1 is in more than one of the groups a, ab"):
        NodePlacementStrategy([0], ["a", "ab"]).get_placement(topology)
    with pytest.raises(PlacementError, match="there is no node group 'arm'(.|\n)*'arms'"):
        PackedPlacementStrategy(0, 0, node_group="arm").get_placement(topology)


# -- what a process sees ---------------------------------------------------------------------


def test_robots_come_with_all_devices_of_the_node() -> None:
    topology = cluster(2, 2, node_groups=GROUPS)
    placements = PackedPlacementStrategy(0, 1, node_group="arms").get_placement(topology)
    assert where(placements) == [(1, (0,)), (1, (1,))]
    for placement in placements:
        assert placement.resource_kind == "Franka"
        assert placement.visible_accelerators == ("0", "1")
        assert placement.local_accelerator_rank == -1


def test_without_isolation_all_devices_are_visible() -> None:
    placements = PackedPlacementStrategy(1, 2).get_placement(cluster(1, 4), False)
    assert {p.visible_accelerators for p in placements} == {("0", "1", "2", "3")}
    assert [p.local_accelerator_rank for p in placements] == [1, 2]


def test_a_process_on_cpu_slots_sees_no_accelerators() -> None:
    (placement,) = FlexiblePlacementStrategy([[2, 3]]).get_placement(cluster())
    assert placement.accelerator_type is AcceleratorType.NO_ACCEL
    assert placement.visible_accelerators == ()
    assert placement.local_hardware_ranks == (2, 3)
    assert placement.local_accelerator_rank == -1
    assert placement.resource_kind == "cpu"
    assert placement.device_env["CUDA_VISIBLE_DEVICES"] == ""


def test_device_ids_of_a_node_that_has_only_some_of_its_devices() -> None:
    devices = accelerator_resource(AcceleratorType.NV_GPU, [("6", "H200"), ("7", "H200")])
    node = NodeInfo(node_rank=0, hardware_resources=[devices])
    placements = PackedPlacementStrategy(0, 1).get_placement(ClusterTopology([node]))
    assert [p.local_accelerator_rank for p in placements] == [0, 1]
    assert [p.device_env["CUDA_VISIBLE_DEVICES"] for p in placements] == ["6", "7"]


def test_anything_with_a_topology_is_a_cluster() -> None:
    launched = SimpleNamespace(topology=cluster(1, 2))
    assert len(PackedPlacementStrategy(0, 1).get_placement(launched)) == 2
