"""Node groups give workers on their hosts an interpreter and an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = ("-m", "tests.e2e_tests.hosts.where_am_i")


def ask(hosts, cluster: dict[str, Any], *names: str) -> dict[str, list[dict[str, Any]]]:
    said = hosts.run(*PROGRAM, json.dumps(cluster), *names)
    return json.loads(said.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def interpreter(hosts) -> str:
    """Another interpreter, with the packages of this one, in the folder that hosts share."""
    folder = hosts.shared / "sim env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "ours.pth").write_text("".join(f"{path}\n" for path in ours))
    return str(folder / "bin" / "python")


@pytest.mark.timeout(300)
def test_a_labelled_host_has_an_interpreter_and_variables_of_its_own(hosts, interpreter):
    cluster = {
        "num_nodes": 3,
        "component_placement": {
            "learner": {"node_group": "cluster", "placement": "0-1"},
            "simulator": {"node_group": "sim", "placement": "0:0-1"},
        },
        "node_groups": [
            {
                "label": "sim",
                "node_ranks": 2,
                "env_configs": [
                    {
                        "env_vars": [{"FLAVOUR": "second"}, {"PYTHONHASHSEED": "7"}],
                        "python_interpreter_path": interpreter,
                    }
                ],
            }
        ],
    }
    said = ask(hosts, cluster, "FLAVOUR", "PYTHONHASHSEED", "RLINF_NODE_RANK", "NODE_GROUP_LABEL")
    print(said)
    assert [worker["host"] for worker in said["simulator"]] == ["host2", "host2"]
    assert {worker["python"] for worker in said["simulator"]} == {interpreter}
    given = {
        "FLAVOUR": "second",
        "PYTHONHASHSEED": "7",
        "RLINF_NODE_RANK": "2",
        "NODE_GROUP_LABEL": "sim",
    }
    assert [worker["env"] for worker in said["simulator"]] == [given, given]
    # Workers of others, on the same and on other hosts, are not touched by it.
    assert [worker["host"] for worker in said["learner"]] == ["host0", "host1"]
    assert {worker["prefix"] for worker in said["learner"]} == {sys.prefix}
    assert {worker["env"]["FLAVOUR"] for worker in said["learner"]} == {None}


@pytest.mark.timeout(300)
def test_one_host_in_two_groups_is_two_environments(hosts):
    def group(label: str, flavours: dict[int, str]) -> dict[str, Any]:
        configs = [
            {"node_ranks": rank, "env_vars": [{"FLAVOUR": flavour}]}
            for rank, flavour in flavours.items()
        ]
        return {"label": label, "node_ranks": "1-2", "env_configs": configs}

    cluster = {
        "num_nodes": 3,
        "component_placement": {
            "first": {"node_group": "a", "placement": "all"},
            "second": {"node_group": "b", "placement": "1"},
        },
        "node_groups": [group("a", {1: "one", 2: "two"}), group("b", {2: "other"})],
    }
    said = ask(hosts, cluster, "FLAVOUR")
    seen = {
        name: [(worker["host"], worker["env"]["FLAVOUR"]) for worker in workers]
        for name, workers in said.items()
    }
    assert seen == {
        "first": [("host1", "one"), ("host2", "two")],
        "second": [("host2", "other")],
    }


def test_an_interpreter_that_is_not_there_is_named(hosts):
    cluster = {
        "num_nodes": 3,
        "component_placement": {"simulator": {"node_group": "sim", "placement": "0"}},
        "node_groups": [
            {
                "label": "sim",
                "node_ranks": 2,
                "env_configs": [{"python_interpreter_path": "/no/such/python"}],
            }
        ],
    }
    said = hosts.run(*PROGRAM, json.dumps(cluster), code=1)
    assert "/no/such/python" in said and "node 2" in said
