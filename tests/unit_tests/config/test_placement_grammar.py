"""The grammar of placements: what each form means, and properties that hold for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlinf.config.placement import (
    PlacementError,
    format_ranks,
    parse_component_placement,
    parse_ranks,
    resolve,
)
from rlinf.config.placement.ranks import Limit


def plan(value: object, num_resources: int = 16) -> list[tuple[int, ...]]:
    spec = parse_component_placement({"actor": value})["actor"]
    plans = resolve(spec, num_resources)
    assert [p.rank for p in plans] == list(range(len(plans)))
    return [p.resources for p in plans]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", [(3,)]),
        (3, [(3,)]),
        ("0-3", [(0,), (1,), (2,), (3,)]),
        (" 0 - 1 , 3 ", [(0,), (1,), (3,)]),
        ("0,2,3", [(0,), (2,), (3,)]),
        ("0-1,5,14", [(0,), (1,), (5,), (14,)]),
        ([0, 1, "4-5"], [(0,), (1,), (4,), (5,)]),
        ((0, 2), [(0,), (2,)]),
        (["0-1:0", "4:1"], [(0, 1), (4,)]),
        ("0-1:0-3", [(0,), (0,), (1,), (1,)]),
        ("0-3:0-1", [(0, 1), (2, 3)]),
        ("0-3:0", [(0, 1, 2, 3)]),
        ("2:0-2", [(2,), (2,), (2,)]),
        ("0,2:1-2", [(0,), (2,), (2,)]),
        ({"placement": "0-1"}, [(0,), (1,)]),
    ],
)
def test_forms(value: object, expected: list[tuple[int, ...]]) -> None:
    assert plan(value) == expected


def test_omitted_process_ranks_continue_the_count() -> None:
    processes = plan("0-1:0-3,3-5,7-10:7-14")
    assert processes[:4] == [(0,), (0,), (1,), (1,)]
    assert processes[4:7] == [(3,), (4,), (5,)]
    assert processes[7:] == [(r,) for r in (7, 7, 8, 8, 9, 9, 10, 10)]


def test_all_takes_every_resource() -> None:
    assert plan("all", 3) == [(0,), (1,), (2,)]
    assert plan("all:0-1", 4) == [(0, 1), (2, 3)]
    assert plan(["all"], 2) == [(0,), (1,)]


def test_shared_key_gives_each_component_the_same_placement() -> None:
    specs = parse_component_placement({"actor, rollout": "0-3", "env": 4})
    assert list(specs) == ["actor", "rollout", "env"]
    assert resolve(specs["actor"], 8) == resolve(specs["rollout"], 8)


@pytest.mark.parametrize("groups", ["a,b", " a , b ", ["a", "b"], ("a", "b"), ["a,b"]])
def test_node_groups(groups: object) -> None:
    value = {"node_group": groups, "placement": "0-1"}
    assert parse_component_placement({"env": value})["env"].node_groups == ("a", "b")


def test_omegaconf_lists() -> None:
    config = OmegaConf.create(
        "actor: [0, 1, 4-5]\nenv: {node_group: [a, 4090], placement: [0, 2-3]}\n"
    )
    specs = parse_component_placement(config)
    assert [p.resources for p in resolve(specs["actor"], 8)] == [(0,), (1,), (4,), (5,)]
    assert specs["env"].node_groups == ("a", "4090")


def test_default_node_group_is_the_cluster() -> None:
    assert parse_component_placement({"env": "all"})["env"].node_groups == ("cluster",)


def test_parse_ranks() -> None:
    nodes = Limit(6, noun="nodes")
    assert parse_ranks("x", "0-2,5", nodes) == (0, 1, 2, 5)
    assert parse_ranks("x", "all", nodes) == (0, 1, 2, 3, 4, 5)
    with pytest.raises(PlacementError, match="this cluster has 6 nodes, ranks 0-5"):
        parse_ranks("x", "0-6", nodes)
    with pytest.raises(PlacementError, match="process ranks have no meaning here"):
        parse_ranks("x", "0-1:0", nodes)


# -- properties ------------------------------------------------------------------------------


@st.composite
def segments(draw: st.DrawFn) -> list[tuple[int, int, int, bool]]:
    """Pieces as (first resource, number of resources, number of processes, show processes)."""
    result = []
    start = 0
    for _ in range(draw(st.integers(1, 5))):
        start += draw(st.integers(0, 4))
        small, factor = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        shape = draw(st.sampled_from(["same", "many processes", "many resources"]))
        resources = small * factor if shape == "many resources" else small
        processes = small * factor if shape == "many processes" else small
        show = resources != processes or draw(st.booleans())
        result.append((start, resources, processes, show))
        start += resources
    return result


def render(pieces: list[tuple[int, int, int, bool]], blank: str) -> list[str]:
    texts, next_process = [], 0
    for start, resources, processes, show in pieces:
        text = span(start, resources)
        if show:
            text += f"{blank}:{blank}{span(next_process, processes)}"
        next_process += processes
        texts.append(text)
    return texts


def span(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start}-{start + count - 1}"


def expected_plan(pieces: list[tuple[int, int, int, bool]]) -> list[tuple[int, ...]]:
    result: list[tuple[int, ...]] = []
    for start, resources, processes, _ in pieces:
        ranks = list(range(start, start + resources))
        if processes >= resources:
            each = processes // resources
            result += [(rank,) for rank in ranks for _ in range(each)]
        else:
            each = resources // processes
            result += [tuple(ranks[i : i + each]) for i in range(0, resources, each)]
    return result


@given(segments(), st.sampled_from(["", " ", "  "]), st.booleans())
def test_rendering_a_plan_and_parsing_it_gives_the_plan(
    pieces: list[tuple[int, int, int, bool]], blank: str, as_list: bool
) -> None:
    texts = render(pieces, blank)
    value = texts if as_list else f"{blank},{blank}".join(texts)
    highest = pieces[-1][0] + pieces[-1][1]
    assert plan(value, highest) == expected_plan(pieces)


@given(segments(), st.integers(1, 40))
def test_ranks_are_in_range_or_refused(
    pieces: list[tuple[int, int, int, bool]], num_resources: int
) -> None:
    try:
        processes = plan(",".join(render(pieces, "")), num_resources)
    except PlacementError as error:
        assert pieces[-1][0] + pieces[-1][1] > num_resources
        assert f"has {num_resources} resource" in str(error)
        return
    used = [rank for process in processes for rank in process]
    assert all(0 <= rank < num_resources for rank in used)
    assert used == sorted(used)
    assert all(processes)


@given(st.text(alphabet="0123456789-:, all\u2013.x", max_size=12))
def test_any_text_is_a_plan_or_a_placement_error(text: str) -> None:
    try:
        processes = plan(text, 8)
    except PlacementError as error:
        lines = error.message.splitlines()
        carets = next(line for line in lines if line.strip() and not line.strip(" ^"))
        assert len(carets) <= 4 + max(2, len(text) + 2)
    else:
        assert processes
        assert all(0 <= rank < 8 for process in processes for rank in process)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_any_value_is_a_plan_or_a_placement_error(value: object) -> None:
    try:
        plan(value, 8)
    except PlacementError as error:
        assert str(error).startswith("cluster.component_placement.actor")


@given(st.sets(st.integers(0, 60), min_size=1))
def test_format_ranks_can_be_parsed(ranks: set[int]) -> None:
    text = format_ranks(sorted(ranks))
    assert parse_ranks("x", text, Limit(61)) == tuple(sorted(ranks))
