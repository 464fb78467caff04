"""Topologies: node ranks, groups, and nodes invented from a config."""

from __future__ import annotations

import pickle

import pytest

from rlinf.config.placement import PlacementError, component_world_sizes
from rlinf.scheduler.hardware import AcceleratorType, accelerator_resource
from rlinf.scheduler.topology.node import NodeInfo
from rlinf.scheduler.topology.topology import (
    ClusterTopology,
    NodeRankError,
    assume_topology,
    hardware_of_nodes,
    rank_nodes,
)


def node(
    ip: str = "",
    gpus: int = 0,
    rank: str | None = None,
    head: bool = False,
    vendor: AcceleratorType = AcceleratorType.NV_GPU,
    node_rank: int = -1,
) -> NodeInfo:
    devices = accelerator_resource(vendor, [(str(i), "H200") for i in range(gpus)])
    return NodeInfo(
        node_rank=node_rank,
        node_ip=ip,
        is_head=head,
        default_env_vars={} if rank is None else {"RLINF_NODE_RANK": rank},
        hardware_resources=[devices] if devices else [],
    )


# -- ranks -----------------------------------------------------------------------------------


def ips(nodes: list[NodeInfo]) -> list[str]:
    return [n.node_ip for n in nodes]


def test_given_ranks_decide_the_order() -> None:
    found = [node("10.0.0.1", rank="2", head=True), node("10.0.0.2", rank="0"), node("c", rank="1")]
    ranked, extra = rank_nodes(found, 3, has_node_groups=True)
    assert ips(ranked) == ["10.0.0.2", "c", "10.0.0.1"]
    assert [n.node_rank for n in ranked] == [0, 1, 2]
    assert extra == []
    assert [n.node_rank for n in found] == [-1, -1, -1]


def test_without_ranks_head_then_accelerator_then_ip_as_a_number() -> None:
    found = [
        node("10.0.0.10", gpus=1),
        node("10.0.0.9"),
        node("10.0.0.9", gpus=1),
        node("10.0.0.2", gpus=1, vendor=AcceleratorType.AMD_GPU),
        node("10.0.0.99", head=True),
        node("10.0.0.100", gpus=1),
    ]
    ranked, _ = rank_nodes(found)
    assert [(n.node_ip, n.num_accelerators) for n in ranked] == [
        ("10.0.0.99", 0),
        ("10.0.0.9", 1),
        ("10.0.0.10", 1),
        ("10.0.0.100", 1),
        ("10.0.0.2", 1),
        ("10.0.0.9", 0),
    ]


def test_extra_nodes_are_returned() -> None:
    found = [node("10.0.0.3"), node("10.0.0.2"), node("10.0.0.1", head=True)]
    ranked, extra = rank_nodes(found, 2)
    assert ips(ranked) == ["10.0.0.1", "10.0.0.2"]
    assert ips(extra) == ["10.0.0.3"]
    given = [node("a", rank="0", head=True), node("b", rank="7"), node("c", rank="1")]
    ranked, extra = rank_nodes(given, 2)
    assert (ips(ranked), ips(extra)) == (["a", "c"], ["b"])


@pytest.mark.parametrize(
    ("found", "count", "words"),
    [
        (
            [node("10.0.0.1", rank="0", head=True), node("10.0.0.2"), node("10.0.0.3")],
            3,
            "is set on 10.0.0.1 (head), but not on 10.0.0.2, 10.0.0.3. Export it on every node",
        ),
        ([node("a", rank="0"), node("b", rank="0")], 2, "is 0 on both a and b"),
        (
            [node("a", rank="0"), node("b", rank="3")],
            4,
            "RLINF_NODE_RANK 1-2 of 4 nodes is missing; found 0 on a, 3 on b",
        ),
        ([node("a", rank="1"), node("b", rank="2")], 2, "RLINF_NODE_RANK 0 of 2"),
        ([node("a", rank="x")], 1, "RLINF_NODE_RANK is 'x' on a"),
        ([node("a", rank="-1")], 1, "RLINF_NODE_RANK is '-1' on a"),
        ([node("a"), node("b")], 3, "the cluster needs 3 nodes, found 2"),
        (
            [node("a", rank="0"), node("b", rank="1"), node("c", rank="2", head=True)],
            2,
            "the head node must be one of the 2 nodes",
        ),
    ],
)
def test_bad_ranks(found: list[NodeInfo], count: int, words: str) -> None:
    with pytest.raises(NodeRankError) as caught:
        rank_nodes(found, count)
    assert words in str(caught.value)


def test_node_groups_need_given_ranks_on_several_nodes() -> None:
    found = [node("10.0.0.2"), node("10.0.0.1", head=True)]
    with pytest.raises(NodeRankError) as caught:
        rank_nodes(found, 2, has_node_groups=True)
    assert "on 10.0.0.1 (head): export RLINF_NODE_RANK=0" in str(caught.value)
    assert "on 10.0.0.2: export RLINF_NODE_RANK=1" in str(caught.value)
    assert "before `ray start`" in str(caught.value)
    ranked, _ = rank_nodes(found[:1], 1, has_node_groups=True)
    assert ranked[0].node_rank == 0


# -- groups ----------------------------------------------------------------------------------

CONFIG = {
    "num_nodes": 3,
    "node_groups": [
        {
            "label": "gpu",
            "node_ranks": "0-1",
            "env_configs": [
                {"node_ranks": 0, "env_vars": [{"IFACE": "eth0"}]},
                {"node_ranks": 1, "env_vars": [{"IFACE": "eth1"}]},
                {"node_ranks": 1, "python_interpreter_path": "/opt/py"},
            ],
        },
        {"label": "sim", "node_ranks": 2},
        {"label": "plain", "node_ranks": "all", "ignore_hardware": True},
    ],
}


def three_nodes() -> list[NodeInfo]:
    return [
        node("10.0.0.1", gpus=2, node_rank=0),
        node("10.0.0.2", gpus=3, node_rank=1),
        node("10.0.0.3", node_rank=2),
    ]


def test_groups_of_a_config() -> None:
    topology = ClusterTopology.from_config(CONFIG, three_nodes())
    assert topology.num_accelerators == 5
    assert topology.accelerator_ranks == [[0, 1], [2, 3, 4], []]
    assert list(topology.node_groups) == ["cluster", "node", "gpu", "sim", "plain"]
    assert topology.nodes[1].node_labels == ["cluster", "node", "gpu", "plain"]
    gpu = topology.node_groups["gpu"]
    assert (gpu.resource_kind, gpu.hardware_resource_count) == ("accelerator", 5)
    assert gpu.local_hardware_ranks == [0, 1, 0, 1, 2]
    assert gpu.get_node_by_hardware_rank(3).node_ip == "10.0.0.2"
    assert gpu.get_local_hardware_rank(4) == 2
    assert len(gpu.get_hardware_infos(1)) == 3
    assert gpu.get_node_env_vars(0) == {"IFACE": "eth0"}
    assert gpu.get_node_env_vars(1) == {"IFACE": "eth1"}
    assert gpu.get_node_python_interpreter_path(0) is None
    assert gpu.get_node_python_interpreter_path(1) == "/opt/py"
    sim, plain = topology.node_groups["sim"], topology.node_groups["plain"]
    assert (sim.resource_kind, sim.hardware_resource_count) == ("node", 1)
    assert (plain.resource_kind, plain.hardware_resource_count) == ("node", 3)
    assert topology.get_node_group("nothing") is None
    assert topology.get_node_group() is topology.node_groups["cluster"]


def test_cpu_slots_belong_to_nodes_without_accelerators() -> None:
    topology = ClusterTopology.from_config({**CONFIG, "cpu_slots_per_node": 6}, three_nodes())
    sim = topology.node_groups["sim"]
    assert (sim.resource_kind, sim.hardware_resource_count) == ("cpu", 6)
    assert topology.node_groups["cluster"].resource_kind == "accelerator"
    assert sim.get_hardware_infos(2) == []


def test_one_node_without_accelerators_has_eight_slots() -> None:
    topology = ClusterTopology.from_config(None, [node(node_rank=0)])
    assert [r.local_rank for r in topology.resources(["cluster"])] == list(range(8))
    assert topology.resources(["cluster"])[0].kind == "cpu"


def test_num_gpus_per_node_limits_what_is_used() -> None:
    nodes = [node(gpus=4, node_rank=0)]
    assert ClusterTopology.from_config({"num_gpus_per_node": 2}, nodes).num_accelerators == 2
    no_gpus = ClusterTopology.from_config({"num_gpus_per_node": 0}, nodes)
    assert no_gpus.node_groups["cluster"].resource_kind == "cpu"
    with pytest.raises(PlacementError, match="has only 4 accelerators"):
        ClusterTopology.from_config({"num_gpus_per_node": 8}, nodes)


def test_slots_stand_in_for_the_gpus_a_laptop_lacks() -> None:
    config = {"num_gpus_per_node": 4, "component_placement": {"actor": "all"}}
    topology = ClusterTopology.from_config(config, [node(node_rank=0)])
    resources = topology.resources(["cluster"])
    assert len(resources) == component_world_sizes(config)["actor"] == 4
    assert resources[0].kind == "cpu"


def test_hardware_that_is_not_there() -> None:
    config = {
        "node_groups": [
            {
                "label": "arms",
                "node_ranks": 0,
                "hardware": {"type": "Franka", "configs": [{"node_rank": 0, "robot_ip": "a"}]},
            }
        ]
    }
    with pytest.raises(PlacementError, match="'arms' needs 1 Franka on node 0 .* which has 0"):
        ClusterTopology.from_config(config, [node("10.0.0.1", node_rank=0)])


def test_mistakes_in_groups_are_placement_errors() -> None:
    with pytest.raises(PlacementError, match="'cluster' is reserved"):
        ClusterTopology.from_config(
            {"node_groups": [{"label": "cluster", "node_ranks": 0}]}, [node(node_rank=0)]
        )


def test_unknown_nodes_and_ranks() -> None:
    topology = ClusterTopology.from_config(CONFIG, three_nodes())
    with pytest.raises(ValueError, match="there is no node 3: this cluster has 3"):
        topology.get_node_info(3)
    with pytest.raises(ValueError, match="rank 5 is out of range: group 'gpu' has 5"):
        topology.node_groups["gpu"].get_node_by_hardware_rank(5)
    with pytest.raises(ValueError, match="node 2 is not in group 'gpu'"):
        topology.node_groups["gpu"].get_hardware_infos(2)


def test_a_topology_can_be_sent_to_workers() -> None:
    topology = ClusterTopology.from_config(CONFIG, three_nodes())
    copy = pickle.loads(pickle.dumps(topology))
    assert copy.accelerator_ranks == topology.accelerator_ranks
    assert copy.resources(["gpu"]) == topology.resources(["gpu"])


# -- invented nodes --------------------------------------------------------------------------

ROBOTS = {
    "num_nodes": 2,
    "node_groups": [
        {
            "label": "arms",
            "node_ranks": "0-1",
            "hardware": {
                "type": "Franka",
                "configs": [
                    {"node_rank": 1, "robot_ip": "a"},
                    {"node_rank": 1, "robot_ip": "b"},
                    {"node_rank": 0, "robot_ip": "c"},
                ],
            },
        },
        {"label": "turtles", "node_ranks": 0, "hardware_type": "Turtle2"},
    ],
}


def test_assumed_nodes() -> None:
    topology = assume_topology(ROBOTS, accelerators_per_node=4)
    assert [n.num_accelerators for n in topology.nodes] == [4, 4]
    arms = topology.node_groups["arms"]
    assert [(r.node_rank, r.local_rank) for r in arms.resources] == [(0, 0), (1, 0), (1, 1)]
    assert topology.node_groups["turtles"].hardware_resource_count == 1


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("accelerators", [0, 1, 8])
@pytest.mark.parametrize("slots", [None, 3])
def test_assumed_topology_agrees_with_world_sizes(
    nodes: int, accelerators: int, slots: int | None
) -> None:
    config = {
        "num_nodes": nodes,
        "cpu_slots_per_node": slots,
        "num_gpus_per_node": 2,
        "component_placement": {"a": "all", "b": {"node_group": "node", "placement": "all"}},
    }
    topology = assume_topology(config, accelerators)
    sizes = component_world_sizes(config, accelerators)
    assert len(topology.resources(["cluster"])) == sizes["a"]
    assert len(topology.resources(["node"])) == sizes["b"] == nodes


def test_hardware_of_nodes() -> None:
    wanted = hardware_of_nodes(ROBOTS, 2)
    franka, turtle = wanted[0]
    assert franka == {"type": "Franka", "configs": [{"node_rank": 0, "robot_ip": "c"}]}
    assert turtle == {"type": "Turtle2", "configs": []}
    assert [c["robot_ip"] for c in wanted[1][0]["configs"]] == ["a", "b"]
    assert hardware_of_nodes(None, 2) == {0: [], 1: []}


@pytest.mark.parametrize(
    ("hardware", "words"),
    [
        ({"type": "Frnka"}, "unsupported hardware type 'Frnka'"),
        ({"type": "Frnka"}, "one of Franka, Turtle2, accelerator"),
        (
            {"type": "Franka", "configs": [{"node_rank": 0, "robot_pi": "a"}]},
            "did you mean 'robot_ip'?",
        ),
        (
            {"type": "Franka", "configs": [{"node_rank": 0, "camera_type": "real"}]},
            "use one of realsense, zed, lumos",
        ),
    ],
)
def test_mistakes_in_hardware(hardware: dict, words: str) -> None:
    config = {"node_groups": [{"label": "a", "node_ranks": 0, "hardware": hardware}]}
    with pytest.raises(PlacementError) as caught:
        assume_topology(config, 0)
    assert words in str(caught.value)
    assert str(caught.value).startswith("cluster.node_groups[0].hardware")
