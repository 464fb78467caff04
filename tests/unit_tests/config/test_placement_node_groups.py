"""Node groups: what is read from them, and the message for each mistake."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlinf.config.placement import PlacementError, parse_node_groups


def test_reserved_groups_are_always_there() -> None:
    groups = parse_node_groups(None, 3)
    assert groups["cluster"].node_ranks == groups["node"].node_ranks == (0, 1, 2)
    assert groups["node"].ignore_hardware
    assert not groups["cluster"].ignore_hardware


def test_everything_a_group_can_say() -> None:
    config = OmegaConf.create(
        """
        - label: train
          node_ranks: 0-1
          env_configs:
            - node_ranks: 0
              env_vars: [{IFACE: eth0}, {LEVEL: 3}, {FLAG: true}]
              python_interpreter_path: /opt/a/bin/python
            - node_ranks: [1]
              env_vars: {IFACE: eth1}
              python_interpreter_path: /opt/b/bin/python
        - label: 4090
          node_ranks: [0, 2-3]
          ignore_hardware: true
        - label: arms
          node_ranks: 1
          hardware:
            type: Franka
            configs: [{node_rank: 1, robot_ip: 10.0.0.5, camera_serials: [a, b]}]
        """
    )
    groups = parse_node_groups(config, 4)
    first, second = groups["train"].env_configs
    assert first.env_vars == {"IFACE": "eth0", "LEVEL": "3", "FLAG": "true"}
    assert (first.node_ranks, second.node_ranks) == ((0,), (1,))
    assert second.env_vars == {"IFACE": "eth1"}
    assert second.python_interpreter_path == "/opt/b/bin/python"
    assert groups["4090"].node_ranks == (0, 2, 3)
    assert groups["4090"].ignore_hardware
    assert groups["arms"].hardware_type == "Franka"
    (arm,) = groups["arms"].hardware_configs
    assert arm == {"node_rank": 1, "robot_ip": "10.0.0.5", "camera_serials": ["a", "b"]}
    assert type(arm["camera_serials"]) is list


def test_one_interpreter_may_be_said_twice() -> None:
    env = {"python_interpreter_path": "/a", "env_vars": {"A": 1}}
    groups = parse_node_groups([{"label": "g", "node_ranks": 0, "env_configs": [env, env]}], 1)
    assert len(groups["g"].env_configs) == 2


OK = {"label": "a", "node_ranks": "0-1"}


def group(**entries: object) -> list[dict]:
    return [{**OK, **entries}]


# config, path, words of the message, text and carets (or None where there is no text).
MISTAKES = {
    "not a list": ({"label": "a"}, "", "is not a list", None),
    "not a mapping": (["a"], "[0]", "is not a mapping", ("a", "^")),
    "unknown key": (group(node_rank=0), "[0]", "did you mean 'node_ranks'", ("node_rank", "^" * 9)),
    "no label": ([{"node_ranks": 0}], "[0].label", "needs a label", ("null", "^^^^")),
    "label with comma": (group(label="a,b"), "[0].label", "'a,b' is not a label", ("a,b", "^^^")),
    "reserved cluster": (group(label="cluster"), "[0].label", "is reserved", ("cluster", "^" * 7)),
    "reserved node": (group(label="node"), "[0].label", "'node' is reserved", ("node", "^^^^")),
    "label twice": ([OK, OK], "[1].label", "'a' is used twice", ("a", "^")),
    "no ranks": ([{"label": "a"}], "[0]", "node group 'a' has no node_ranks", None),
    "rank out of range": (
        group(node_ranks="0-4"), "[0].node_ranks", "this cluster has 4 nodes, ranks 0-3",
        ("0-4", "  ^"),
    ),
    "rank twice": (group(node_ranks="1,1"), "[0].node_ranks", "1 is given twice", ("1,1", "  ^")),
    "rank word": (group(node_ranks="x"), "[0].node_ranks", "'x' is not a rank", ("x", "^")),
    "rank null": (group(node_ranks=None), "[0].node_ranks", "has no value", ("null", "^^^^")),
    "processes": (group(node_ranks="0:1"), "[0].node_ranks", "no meaning here", ("0:1", "^^^")),
    "ignore text": (
        group(ignore_hardware="yes"), "[0].ignore_hardware", "true or false", ("yes", "^^^"),
    ),
    "both": (
        group(ignore_hardware=True, hardware={"type": "Franka"}), "[0]",
        "has both hardware and ignore_hardware", None,
    ),
    "both types": (
        group(hardware_type="Franka", hardware={"type": "Franka"}), "[0]",
        "has both hardware and hardware_type", None,
    ),
    "hardware text": (group(hardware="Franka"), "[0].hardware", "keys type, configs", None),
    "no type": (group(hardware={}), "[0].hardware.type", "is not a hardware type", None),
    "config text": (
        group(hardware={"type": "F", "configs": [1]}), "[0].hardware.configs[0]", "not a mapping",
        ("1", "^"),
    ),
    "config without node": (
        group(hardware={"type": "F", "configs": [{"robot_ip": "a"}]}),
        "[0].hardware.configs[0].node_rank", "is not a node rank", ("null", "^^^^"),
    ),
    "config elsewhere": (
        group(hardware={"type": "F", "configs": [{"node_rank": 3}]}),
        "[0].hardware.configs[0].node_rank", "node 3 is not in this group", ("3", "^"),
    ),
    "config twice": (
        group(hardware={"type": "F", "configs": [{"node_rank": 1}, {"node_rank": 1}]}),
        "[0].hardware.configs[1]", "is the same as configs[0]", None,
    ),
    "hardware twice": (
        [{**OK, "hardware_type": "F"}, {"label": "b", "node_ranks": 1, "hardware_type": "F"}],
        "[1].hardware", "group 'a' already has the F hardware of node 1", None,
    ),
    "env elsewhere": (
        group(env_configs=[{"node_ranks": "1-2"}]), "[0].env_configs[0].node_ranks",
        "node 2 is not in this group", ("1-2", "^^^"),
    ),
    "env in a gap": (
        [{"label": "a", "node_ranks": "0,2", "env_configs": [{"node_ranks": "0-1"}]}],
        "[0].env_configs[0].node_ranks", "node 1 is not in this group", ("0-1", "^^^"),
    ),
    "env key": (
        group(env_configs=[{"env_var": {}}]), "[0].env_configs[0]", "did you mean 'env_vars'",
        ("env_var", "^" * 7),
    ),
    "env text": (
        group(env_configs=[{"env_vars": "A=1"}]), "[0].env_configs[0].env_vars", "is not a list",
        ("A=1", "^^^"),
    ),
    "env item": (
        group(env_configs=[{"env_vars": ["A=1"]}]), "[0].env_configs[0].env_vars",
        "- NAME: value", ("A=1", "^^^"),
    ),
    "env name": (
        group(env_configs=[{"env_vars": {"A-B": 1}}]), "[0].env_configs[0].env_vars",
        "is not the name of a variable", ("A-B", "^^^"),
    ),
    "env null": (
        group(env_configs=[{"env_vars": {"A": None}}]), "[0].env_configs[0].env_vars.A",
        "is not text or a number", ("null", "^^^^"),
    ),
    "env twice": (
        group(env_configs=[{"env_vars": [{"A": 1}, {"A": 2}]}]), "[0].env_configs[0].env_vars",
        "is given twice", ("A", "^"),
    ),
    "env conflict": (
        group(env_configs=[{"env_vars": {"A": 1}}, {"node_ranks": 1, "env_vars": {"A": 2}}]),
        "[0].env_configs[1].env_vars", "A has two values on node 1: '1' and '2'", None,
    ),
    "interpreter conflict": (
        group(env_configs=[{"python_interpreter_path": "/a"}, {"python_interpreter_path": "/b"}]),
        "[0].env_configs[1].python_interpreter_path",
        "node 0 has two interpreters: '/a' and '/b'", None,
    ),
    "interpreter type": (
        group(env_configs=[{"python_interpreter_path": 3}]),
        "[0].env_configs[0].python_interpreter_path", "is not a path", ("3", "^"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str) -> None:
    config, path, words, shown = MISTAKES[case]
    with pytest.raises(PlacementError) as caught:
        parse_node_groups(config, 4)
    message = str(caught.value)
    assert message.startswith(f"cluster.node_groups{path}: ")
    assert words in message
    if shown:
        text, carets = shown
        assert message.splitlines()[1:3] == ["    " + text, "    " + carets]
