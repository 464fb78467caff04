"""Model-parallel placement: modes, strides and sizes."""

from __future__ import annotations

import pytest

from rlinf.config.placement import PlacementError
from rlinf.scheduler.placement import (
    ModelParallelComponentPlacement,
    PlacementMode,
    RolloutSyncMode,
)
from rlinf.scheduler.topology.topology import assume_topology


def place(
    placement: dict,
    actor_tp: int = 1,
    rollout_tp: int = 1,
    nodes: int = 1,
    gpus: int = 8,
    **sections: object,
) -> ModelParallelComponentPlacement:
    cluster = {"num_nodes": nodes, "component_placement": placement}
    cluster.update(sections.pop("cluster", {}))
    cfg = {
        "cluster": cluster,
        "actor": {"model": {"tensor_model_parallel_size": actor_tp}},
        "rollout": {"tensor_parallel_size": rollout_tp},
        **sections,
    }
    return ModelParallelComponentPlacement(cfg, assume_topology(cluster, gpus))


def devices(placement: ModelParallelComponentPlacement, name: str) -> list[list[int]]:
    return placement.get_strategy(name).ranks_of_processes()


COLLOCATED = {"actor,rollout": "all", "reward": "0-3"}


def test_collocated() -> None:
    placement = place(COLLOCATED, actor_tp=2, rollout_tp=2)
    assert placement.placement_mode is PlacementMode.COLLOCATED
    assert placement.is_collocated
    assert not placement.is_disaggregated
    assert not placement.is_pipeline
    assert placement.rollout_sync_mode is RolloutSyncMode.COLLOCATED
    assert devices(placement, "actor") == [[i] for i in range(8)]
    assert devices(placement, "rollout") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (placement.actor_world_size, placement.actor_tp_size) == (8, 2)
    assert (placement.actor_pp_size, placement.actor_dp_size) == (1, 4)
    assert (placement.rollout_world_size, placement.rollout_dp_size) == (8, 4)
    assert placement.get_world_size("rollout") == 4
    assert placement.get_world_size("reward") == 4


@pytest.mark.parametrize(
    ("actor_tp", "rollout_tp", "expected"),
    [
        (4, 2, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (8, 2, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (8, 4, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (4, 1, [[i] for i in range(8)]),
        (2, 4, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_rollout_shards_lie_where_the_actor_holds_them(
    actor_tp: int, rollout_tp: int, expected: list[list[int]]
) -> None:
    processes = devices(place(COLLOCATED, actor_tp, rollout_tp), "rollout")
    assert processes == expected
    if actor_tp < rollout_tp:
        return
    # Device d holds slice d % actor_tp of a layer, in units of 1 / actor_tp of it. Shard i of the
    # rollout is 1 / rollout_tp of the layer and must contain the slice of its device.
    for process in processes:
        for shard, device in enumerate(process):
            assert (device % actor_tp) * rollout_tp // actor_tp == shard


def test_disaggregated() -> None:
    placement = place(
        {"actor": "0-3", "rollout": "4-7", "inference": "8-9", "critic": "10-11", "reward": 0},
        actor_tp=2,
        rollout_tp=2,
        gpus=16,
        algorithm={"recompute_logprobs": True},
        inference={"model": {"tensor_model_parallel_size": 2}},
    )
    assert placement.is_disaggregated
    assert placement.is_pipeline
    assert placement.rollout_sync_mode is RolloutSyncMode.DISAGGREGATED
    assert placement.has_dedicated_inference
    assert not placement.has_dedicated_critic_inference
    assert devices(placement, "rollout") == [[4, 5], [6, 7]]
    assert devices(placement, "inference") == [[8], [9]]
    assert (placement.inference_tp_size, placement.inference_dp_size) == (2, 1)
    assert placement.critic_world_size == 2


def test_actor_inference_is_another_name_for_inference() -> None:
    placement = place(
        {"actor": "0-3", "rollout": "4-5", "actor_inference": "6-7", "reward": 0},
        algorithm={"recompute_logprobs": True},
    )
    assert placement.has_dedicated_inference
    assert placement.inference_world_size == 2


def test_no_stride_when_disaggregated() -> None:
    placement = place({"actor": "0-3", "rollout": "4-7", "reward": 0}, actor_tp=4, rollout_tp=2)
    assert devices(placement, "rollout") == [[4, 5], [6, 7]]


def test_pipeline_and_context_parallel() -> None:
    placement = place(
        {"actor": "0-7", "rollout": "8-15", "reward": 0},
        gpus=16,
        actor={
            "model": {
                "tensor_model_parallel_size": 2,
                "pipeline_model_parallel_size": 2,
                "context_parallel_size": 2,
            }
        },
        rollout={"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    )
    assert (placement.actor_pp_size, placement.actor_dp_size) == (2, 1)
    assert devices(placement, "rollout") == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_on_the_cpu_slots_of_a_laptop() -> None:
    placement = place(COLLOCATED, gpus=0)
    assert placement.is_collocated
    assert {p.resource_kind for p in placement.get_placement("rollout")} == {"cpu"}


def test_over_nodes() -> None:
    placement = place(COLLOCATED, actor_tp=4, rollout_tp=2, nodes=2, gpus=4)
    nodes = [p.cluster_node_rank for p in placement.get_placement("rollout")]
    assert nodes == [0, 0, 1, 1]


def test_process_ranks_that_agree_are_accepted() -> None:
    placement = place({"actor": "0-3", "rollout": "4-7:0-1", "reward": 0}, rollout_tp=2)
    assert placement.get_world_size("rollout") == 2


def test_helpers_beside_a_collocated_pair() -> None:
    placement = place(
        {"actor,rollout,reward": "0-3", "inference": "4-5", "reference": 6, "critic": 7},
        algorithm={"recompute_logprobs": True},
        rollout_tp=2,
    )
    assert placement.is_collocated
    assert devices(placement, "rollout") == [[0, 1], [2, 3]]
    assert devices(placement, "inference") == [[4], [5]]
    assert devices(placement, "reference") == [[6]]


@pytest.mark.parametrize(("actor", "rollout"), [("0-3", "0-1"), ("2-3", "0-3")])
def test_one_may_use_a_part_of_the_others_resources(actor: str, rollout: str) -> None:
    placement = place({"actor": actor, "rollout": rollout, "reward": 0}, actor_tp=2, rollout_tp=1)
    assert placement.is_collocated
    first, last = map(int, rollout.split("-"))
    assert devices(placement, "rollout") == [[rank] for rank in range(first, last + 1)]


def test_an_evaluation_has_no_actor() -> None:
    placement = place({"rollout": "0-3", "reward": 0}, rollout_tp=2, actor=None)
    assert placement.is_disaggregated
    assert devices(placement, "rollout") == [[0, 1], [2, 3]]


DISJOINT = {"actor": "0-3", "rollout": "4-7", "reward": 0}

MISTAKES = {
    "no reward": ({"actor,rollout": "all"}, {}, "has no reward"),
    "no actor": ({"rollout,reward": "all"}, {}, "has no actor"),
    "no rollout": ({"actor,reward": "all"}, {}, "has no rollout"),
    "overlap": (
        {"actor": "0-3", "rollout": "2-7", "reward": 0},
        {},
        "rollout shares 2 of its 6 resources with actor (0-3)",
    ),
    "gap": ({"actor": "0,2", "rollout": "4-7", "reward": 0}, {}, "the ranks of actor have gaps"),
    "actor copies": (
        {"actor": "0-5", "rollout": "6-7", "reward": 0},
        {"actor_tp": 4},
        "4 * 1 * 1 = 4, and 6 = 1 * 4 + 2",
    ),
    "rollout copies": (DISJOINT, {"rollout_tp": 3}, "3 * 1 = 3, and 4 = 1 * 3 + 1"),
    "line up": (
        {"actor,rollout": "0-5", "reward": 0},
        {"actor_tp": 3, "rollout_tp": 2},
        "do not line up with the actor's: 3 = 1 * 2 + 1",
    ),
    "collocated inference": (
        {**COLLOCATED, "inference": "0-3"},
        {},
        "inference shares 4 of its 4 resources with actor",
    ),
    "critic overlaps": ({**COLLOCATED, "critic": "0-3"}, {}, "critic shares 4 of its 4"),
    "inference without work": (
        {"actor": "0-3", "rollout": "4-5", "inference": "6-7", "reward": 0},
        {},
        "algorithm.recompute_logprobs: true",
    ),
    "two inferences": (
        {"actor": "0-3", "rollout": 4, "inference": 5, "actor_inference": 6, "reward": 0},
        {},
        "has both inference and actor_inference",
    ),
    "process ranks": (
        {"actor": "0-3", "rollout": "4-7:0-1", "reward": 0},
        {},
        "names 2 processes, but the parallel sizes of rollout make 4: on 4, 5, 6, 7",
    ),
    "tensor parallel over nodes": (
        COLLOCATED,
        {"rollout_tp": 8, "nodes": 2, "gpus": 4},
        "process 0 would use ranks 0-7 of nodes 0-1",
    ),
    "size": (DISJOINT, {"rollout_tp": 0}, "rollout.tensor_parallel_size: is not a parallel size"),
    "auto": (DISJOINT, {"cluster": {"auto_scheduler": True}}, "cluster.auto_scheduler: is not"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str) -> None:
    placement, options, words = MISTAKES[case]
    with pytest.raises(PlacementError) as caught:
        place(placement, **options)
    assert words in str(caught.value)


def test_sizes_of_a_component_that_is_not_placed() -> None:
    with pytest.raises(PlacementError, match="component 'critic' has no placement"):
        _ = place(DISJOINT).critic_dp_size
