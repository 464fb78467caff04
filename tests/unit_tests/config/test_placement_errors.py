"""Every mistake in a placement shows the text, a caret under the place, and what to do."""

from __future__ import annotations

import pickle

import pytest
from omegaconf import OmegaConf

from rlinf.config.placement import PlacementError, component_world_sizes

CLUSTER = {
    "num_nodes": 2,
    "num_gpus_per_node": 4,
    "node_groups": [
        {"label": "gpu", "node_ranks": 0},
        {"label": "gpu2", "node_ranks": "all"},
        {
            "label": "arms",
            "node_ranks": 1,
            "hardware": {
                "type": "Franka",
                "configs": [{"node_rank": 1, "robot_ip": "a"}, {"node_rank": 1, "robot_ip": "b"}],
            },
        },
    ],
}


def message_of(value: object, key: object = "actor") -> str:
    """What the user sees for one component."""
    with pytest.raises(PlacementError) as caught:
        component_world_sizes({**CLUSTER, "component_placement": {key: value}})
    return str(caught.value)


# value, the text shown, the carets under it, words of the first line, words of the rest.
VALUES = {
    "out of range": ("0-8", "0-8", "  ^", "rank 8 is out", "has 8 resources, ranks 0-7 (accel"),
    "first out of range": ("9-12", "9-12", "^", "rank 9 is out of range", "use ranks up to 7"),
    "int out of range": (8, "8", "^", "rank 8 is out of range", "this cluster has 8 resources"),
    "base 60": (60, "60", "^^", "rank 60 is out of range", "if you wrote 1:0, quote it"),
    "twice": ("0-3,2", "0-3,2", "    ^", "rank 2 is given twice", "0:0-1"),
    "twice in a row": ("1,1", "1,1", "  ^", "rank 1 is given twice", "every rank once"),
    "descending": ("4-5,0-1", "4-5,0-1", "    ^", "ascend, but 0 comes after 5", "sort"),
    "descending range": ("7-0", "7-0", "^^^", "the range 7-0 descends", "write 0-7"),
    "trailing comma": ("0-3,", "0-3,", "   ^", "nothing after it", "remove the comma"),
    "leading comma": (",0-3", ",0-3", "^", "nothing before it", "remove the comma"),
    "double comma": ("0,,1", "0,,1", "  ^", "nothing before it", "remove the comma"),
    "only a comma": (",", ",", "^", "nothing before it", "remove the comma"),
    "empty": ("", '""', "^^", "is empty", "allowed: all, a rank (3), a range (0-7)"),
    "blank": ("  ", '"  "', "^^^^", "is empty", "allowed: all"),
    "null": (None, "null", "^^^^", "has no value", "allowed: all"),
    "true": (True, "true", "^^^^", "a truth value is not a rank", "allowed: all"),
    "float": (1.5, "1.5", "^^^", "a rank is a whole number", "allowed: all"),
    "float text": ("0,1.5", "0,1.5", "  ^^^", "a rank is a whole number", "allowed: all"),
    "negative": (-1, "-1", "^^", "ranks are not negative", "ranks from 0 upwards"),
    "no end": ("0-", "0-", " ^", "the range has no end", "allowed: all"),
    "three ends": ("0-1-2", "0-1-2", "   ^", "a range has two ends", "allowed: all"),
    "en dash": ("0\u20137", "0\u20137", " ^", "'\u2013' is not understood", "write '-'"),
    "minus sign": ("0\u22127", "0\u22127", " ^", "'\u2212' is not understood", "write '-'"),
    "wide comma": ("0\uff0c1", "0\uff0c1", " ^^", "'\uff0c' is not understood", "write ','"),
    "wide colon": ("0\uff1a0", "0\uff1a0", " ^^", "'\uff1a' is not understood", "write ':'"),
    "tilde": ("0~7", "0~7", " ^", "'~' is not understood", "write '-'"),
    "semicolon": ("0;1", "0;1", " ^", "';' is not understood", "write ','"),
    "dots": ("0..3", "0..3", "^^^^", "'0..3' is not understood", "ranges are written 0-7"),
    "no comma": ("0 1", "0 1", " ^", "two ranks without a comma", "put a comma there"),
    "word": ("0,gpu1", "0,gpu1", "  ^^^^", "'gpu1' is not a rank", "allowed: all"),
    "capitals": ("ALL", "ALL", "^^^", "'ALL' is not understood", "write 'all'"),
    "all and more": ("all,3", "all,3", "^^^", "'all' already means every rank", "stand alone"),
    "too large": ("12345678", "12345678", "^" * 8, "this rank is too large", "up to 999999"),
    "missing": ("???", "???", "^^^", "'???' is not a rank", "allowed: all"),
    "other digits": ("\u0663", "\u0663", "^", "is not a rank", "allowed: all"),
    "second colon": ("0-3:0-3:1", "0-3:0-3:1", "       ^", "a second colon", "(0-3:0-7)"),
    "no resources": (":0-3", ":0-3", "^", "no resource ranks before the colon", "allowed: all"),
    "no processes": ("0-3:", "0-3:", "   ^", "no process ranks after the colon", "allowed: all"),
    "all processes": ("0-3:all", "0-3:all", "    ^^^", "process ranks cannot be 'all'", "leave"),
    "first process": ("0-3:4-7", "0-3:4-7", "    ^", "first process rank is 4, not 0", "write 0-3"),
    "process gap": ("0:0-1,1:3", "0:0-1,1:3", "        ^", "a gap: 3 comes after 1", "write 2"),
    "process twice": ("0-1,2:1", "0-1,2:1", "      ^", "process rank 1 is given twice", "write 2"),
    "does not divide": (
        "0-3:0-5", "0-3:0-5", "^" * 7, "4 resources and 6 processes do not divide: 6 = 1 * 4 + 2",
        "use 4 or 8 processes for 4 resources",
    ),
    "does not divide down": (
        "0,2-7:1-4", "0,2-7:1-4", "  ^^^^^^^", "6 resources and 4 processes do not divide",
        "use 3 or 6 processes for 6 resources",
    ),
    "two nodes": (
        "2-5:0-0", "2-5:0-0", "^" * 7, "process 0 would use ranks 2-5 on nodes 0-1",
        "a process lives on one node",
    ),
    "bad in list": ([0, 1.5, 2], "[0, 1.5, 2]", "    ^^^", "a rank is a whole number", "allowed"),
    "null in list": ([0, None], "[0, null]", "    ^^^^", "has no value", "allowed: all"),
    "bool in list": ([False], "[false]", " ^^^^^", "a truth value is not a rank", "allowed"),
    "text in list": ([0, "x"], "[0, x]", "    ^", "'x' is not a rank", "allowed: all"),
    "empty in list": ([0, ""], '[0, ""]', "    ^^", "is empty", "allowed: all"),
    "range in list": ([0, "6-9"], "[0, 6-9]", "      ^", "rank 9 is out of range", "ranks 0-7"),
    "list in list": ([[0, 1], [2]], "[[0, 1], [2]]", " ^^^^^^", "no lists in it", "0-3:0-1"),
    "mapping in list": ([{"a": 1}], "[{'a': 1}]", " ^^^^^^^^", "a mapping is not a rank", "all"),
    "empty list": ([], "[]", "^^", "the list is empty", "allowed: all"),
    "bytes": (b"0", "b'0'", "^^^^", "a bytes is not a rank", "allowed: all"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_value(case: str) -> None:
    value, text, carets, problem, rest = VALUES[case]
    lines = message_of(value).splitlines()
    assert lines[0].startswith("cluster.component_placement.actor: ")
    assert problem in lines[0]
    assert lines[1] == "    " + text
    assert lines[2] == "    " + carets
    assert rest in "\n".join(lines[3:])


MAPPINGS = {
    "unknown group": (
        {"node_group": "gpv", "placement": 0}, ".node_group: there is no node group 'gpv'",
        "gpv", "^^^", "did you mean 'gpu'",
    ),
    "second of a list": (
        {"node_group": ["gpu2", "gpu"], "placement": 0},
        ".node_group: node groups 'gpu2' and 'gpu' share node 0", "[gpu2, gpu]", "       ^^^",
        "name only one of them",
    ),
    "nothing near": (
        {"node_group": "xyz", "placement": 0}, ".node_group: there is no node group 'xyz'",
        "xyz", "^^^", "allowed: one of cluster, node, gpu, gpu2, arms",
    ),
    "group twice": (
        {"node_group": "gpu, gpu", "placement": 0}, "'gpu' is given twice", "gpu, gpu",
        "     ^^^", "every node group once",
    ),
    "empty group": (
        {"node_group": "gpu,", "placement": 0}, "label of a node group is empty", "gpu,",
        "   ^", "a list of labels",
    ),
    "null group": (
        {"node_group": None, "placement": 0}, "null is not the label of a node group", "null",
        "^^^^", "a list of labels",
    ),
    "range of a group": (
        {"node_group": "gpu", "placement": "0-4"}, ".placement: rank 4 is out of range", "0-4",
        "  ^", "node group 'gpu' has 4 resources, ranks 0-3 (accelerators)",
    ),
    "range of robots": (
        {"node_group": "arms", "placement": "0-2"}, ".placement: rank 2 is out of range", "0-2",
        "  ^", "node group 'arms' has 2 resources, ranks 0-1 (Franka)",
    ),
    "range of nodes": (
        {"node_group": "node", "placement": "0-7"}, ".placement: rank 7 is out of range", "0-7",
        "  ^", "node group 'node' has 2 resources, ranks 0-1 (nodes)",
    ),
    "range of two groups": (
        {"node_group": ["gpu", "arms"], "placement": [6]}, ".placement: rank 6 is out of range",
        "[6]", " ^", "the union of 'gpu' and 'arms' has 6 resources, ranks 0-5",
    ),
    "two kinds": (
        {"node_group": "cluster,arms", "placement": "6-9:0"}, "on two kinds of hardware", "6-9:0",
        "^^^^^", "one kind of hardware",
    ),
    "no placement": (
        {"node_group": "gpu"}, "the key placement is missing", "{node_group: gpu}", "^" * 17,
        "add e.g. placement: all",
    ),
    "misspelt key": (
        {"node_groups": "gpu", "placement": 0}, "unknown key 'node_groups'", "node_groups",
        "^" * 11, "did you mean 'node_group'?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MAPPINGS)
def test_mapping(case: str) -> None:
    value, problem, text, carets, rest = MAPPINGS[case]
    lines = message_of(value).splitlines()
    assert lines[0].startswith("cluster.component_placement.actor")
    assert problem in lines[0]
    assert lines[1] == "    " + text
    assert lines[2] == "    " + carets
    assert rest in "\n".join(lines[3:])


KEYS = {
    "number": (0, "the key 0 is not a component name", "0", "^", "actor: 0-7"),
    "empty": ("", "a component name is empty", '""', "^", "joined by commas"),
    "trailing comma": ("actor,", "name is empty", "actor,", "     ^", "remove the comma"),
    "blank inside": ("act or", "'act or' is not a component name", "act or", "^" * 6, "a comp"),
    "colon": ("actor:0", "'actor:0' is not a component name", "actor:0", "^" * 7, "a component"),
    "same key twice": (
        "env, actor,env", "component 'env' is named twice", "env, actor,env", " " * 11 + "^^^",
        "already in the same key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_key(case: str) -> None:
    key, problem, text, carets, rest = KEYS[case]
    lines = message_of("0", key).splitlines()
    assert problem in lines[0]
    assert lines[1] == "    " + text
    assert lines[2] == "    " + carets
    assert rest in "\n".join(lines[3:])


def test_component_in_two_keys() -> None:
    placement = {"actor,rollout": "0-3", "env,rollout": "4-7"}
    with pytest.raises(PlacementError) as caught:
        component_world_sizes({"num_gpus_per_node": 8, "component_placement": placement})
    assert str(caught.value) == (
        "cluster.component_placement: component 'rollout' is named twice\n"
        "    env,rollout\n"
        "        ^^^^^^^\n"
        "  allowed: every component once\n"
        "  fix: it is already in the key 'actor,rollout'; keep one of them"
    )


@pytest.mark.parametrize("section", [None, {}, "0-7", ["actor"]])
def test_section_that_is_no_mapping(section: object) -> None:
    with pytest.raises(PlacementError, match="mapping of component names to placements"):
        component_world_sizes({"component_placement": section}, 8)


def test_whole_message() -> None:
    assert message_of("0-3,5-8") == (
        "cluster.component_placement.actor: rank 8 is out of range\n"
        "    0-3,5-8\n"
        "          ^\n"
        "  allowed: this cluster has 8 resources, ranks 0-7 (accelerators)\n"
        "  fix: use ranks up to 7, or add nodes or accelerators"
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_nodes": 1}, ("has 8 resources, ranks 0-7 (CPU slots)", "cpu_slots_per_node")),
        ({"num_nodes": 1, "cpu_slots_per_node": 1}, ("has 1 resource, rank 0 (CPU slots)",)),
        ({"num_nodes": 3}, ("has 3 resources, ranks 0-2 (nodes)", "cluster.num_gpus_per_node")),
    ],
)
def test_out_of_range_says_what_ranks_are(config: dict, expected: tuple[str, ...]) -> None:
    with pytest.raises(PlacementError) as caught:
        component_world_sizes({**config, "component_placement": {"actor": "0-40"}}, 0)
    for words in expected:
        assert words in str(caught.value)


def test_all_mistakes_are_reported_together() -> None:
    placement = {"actor": "0-9", "env": {"node_group": "no", "placement": 0}, "rollout": "0-1"}
    with pytest.raises(PlacementError) as caught:
        component_world_sizes({"num_gpus_per_node": 8, "component_placement": placement})
    assert [error.path.rsplit("placement.", 1)[1] for error in caught.value.errors] == [
        "actor",
        "env.node_group",
    ]
    assert "rank 9 is out of range" in str(caught.value)
    assert "there is no node group 'no'" in str(caught.value)


def test_one_mistake_of_a_shared_key_is_reported_once() -> None:
    assert message_of("0-8", "actor,rollout").count("out of range") == 1


def test_values_from_omegaconf() -> None:
    config = OmegaConf.create("component_placement:\n  actor: ???\n  env: 1:0\n  x: [0, 9]\n")
    with pytest.raises(PlacementError) as caught:
        component_world_sizes(config, 8)
    problems = [error.problem for error in caught.value.errors]
    assert problems == [
        "has no value",
        "rank 60 is out of range",
        "rank 9 is out of range",
    ]
    config.component_placement.actor = 0
    with pytest.raises(PlacementError) as caught:
        component_world_sizes(config, 8)
    problems = [error.problem for error in caught.value.errors]
    assert problems == ["rank 60 is out of range", "rank 9 is out of range"]


def test_error_survives_pickling() -> None:
    with pytest.raises(PlacementError) as caught:
        component_world_sizes({"component_placement": {"actor": 9, "env": 8}}, 8)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, PlacementError)
    assert str(copy) == str(caught.value)
    assert len(copy.errors) == 2


@pytest.mark.parametrize("key", ["num_nodes", "num_gpus_per_node", "cpu_slots_per_node"])
@pytest.mark.parametrize("value", [-1, "8", True, 1.0])
def test_counts_must_be_whole_numbers(key: str, value: object) -> None:
    with pytest.raises(PlacementError, match=rf"cluster\.{key}: is not usable"):
        component_world_sizes({key: value, "component_placement": {"actor": 0}})
