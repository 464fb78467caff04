"""World sizes come from the config alone, on any machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from rlinf.config.placement import PlacementError, component_world_sizes, machine, world_size
from rlinf.config.placement.machine import LocalDevice
from rlinf.utils.nvidia import NvidiaDriverError, NvidiaGpu

SEED = {"actor": "0-7", "env": "0-3", "rollout": "4-7"}


def sizes(placement: object, accelerators: int | None = 0, **cluster: object) -> dict[str, int]:
    return component_world_sizes({"component_placement": placement, **cluster}, accelerators)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_size, "local_accelerators", lambda: ("NO_ACCEL", ()))


def test_the_seeds_on_a_laptop() -> None:
    expected = {"actor": 8, "env": 4, "rollout": 4}
    assert sizes(SEED, None, num_nodes=1) == expected
    assert sizes(SEED, None, num_nodes=1, num_gpus_per_node=8) == expected
    config = OmegaConf.create({"cluster": {"num_nodes": 1, "component_placement": SEED}})
    assert component_world_sizes(config.cluster) == expected


def test_cpu_slots_per_node() -> None:
    assert sizes({"env": "all"}) == {"env": 8}
    assert sizes({"env": "all"}, cpu_slots_per_node=3) == {"env": 3}
    assert sizes({"env": "all"}, num_nodes=2, cpu_slots_per_node=3) == {"env": 6}


def test_ranks_are_nodes_on_several_nodes_without_accelerators() -> None:
    assert sizes({"env": "all"}, num_nodes=3) == {"env": 3}


def test_accelerators() -> None:
    assert sizes({"a": "all"}, 4, num_nodes=2) == {"a": 8}
    assert sizes({"a": "all"}, None, num_nodes=2, num_gpus_per_node=8) == {"a": 16}
    assert sizes({"a": "all"}, 2, num_nodes=2, num_gpus_per_node=8) == {"a": 4}


def test_accelerators_of_this_machine_count_only_on_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = (LocalDevice("0", "x"), LocalDevice("1", "x"))
    monkeypatch.setattr(world_size, "local_accelerators", lambda: ("NV_GPU", devices))
    assert sizes({"a": "all"}, None) == {"a": 2}
    assert sizes({"a": "all"}, None, num_nodes=4) == {"a": 4}
    assert sizes({"a": "all"}, None, num_gpus_per_node=0) == {"a": 8}


def test_unknown_accelerators_of_several_nodes_are_not_guessed() -> None:
    assert sizes({"a": "0-15"}, None, num_nodes=2) == {"a": 16}
    assert sizes({"a": "0-15:0-3"}, None, num_nodes=2) == {"a": 4}
    with pytest.raises(PlacementError, match="2 resources, ranks 0-1"):
        sizes({"a": "0-15"}, 0, num_nodes=2)
    on_nodes = {"a": {"node_group": "node", "placement": "0-15"}}
    with pytest.raises(PlacementError, match="2 resources, ranks 0-1"):
        sizes(on_nodes, None, num_nodes=2)


def test_groups() -> None:
    groups = [
        {"label": "gpu", "node_ranks": "0-1"},
        {"label": "sim", "node_ranks": "2-3", "ignore_hardware": True},
        {
            "label": "arms",
            "node_ranks": 2,
            "hardware": {
                "type": "Franka",
                "configs": [{"node_rank": 2, "robot_ip": str(i)} for i in range(3)],
            },
        },
        {"label": "turtles", "node_ranks": "1-2", "hardware_type": "Turtle2"},
    ]
    placement = {
        "actor": {"node_group": "gpu", "placement": "all"},
        "sim": {"node_group": "sim", "placement": "all:0-7"},
        "env": {"node_group": "arms", "placement": "all"},
        "turtle": {"node_group": "turtles", "placement": "all"},
        "both": {"node_group": ["arms", "gpu"], "placement": "all"},
        "mixed": {"node_group": "gpu,sim", "placement": "all"},
        "agent": {"node_group": "node", "placement": 3},
    }
    assert sizes(placement, 8, num_nodes=4, node_groups=groups) == {
        "actor": 16,
        "sim": 8,
        "env": 3,
        "turtle": 2,
        "both": 19,
        "mixed": 4,
        "agent": 1,
    }


def test_group_without_accelerators_counts_its_cpu_slots() -> None:
    groups = [{"label": "g", "node_ranks": 1}]
    placement = {"env": {"node_group": "g", "placement": "all"}}
    config = {"num_nodes": 2, "node_groups": groups, "cpu_slots_per_node": 4}
    assert sizes(placement, 0, **config) == {"env": 4}


# -- this machine ----------------------------------------------------------------------------

GPUS = tuple(LocalDevice(str(i), "H200", f"GPU-{i}{i}") for i in range(4))


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("-1", []),
        ("2,3", ["2", "3"]),
        (" 3 , 0 ", ["3", "0"]),
        ("1,9,2", ["1"]),
        ("GPU-22,0", ["GPU-22", "0"]),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: list[str]
) -> None:
    monkeypatch.setattr(machine, "installed_devices", lambda v: GPUS if v == "NV_GPU" else ())
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    vendor, devices = machine.local_accelerators(environ)
    assert [device.device_id for device in devices] == expected
    assert vendor == ("NV_GPU" if expected else "NO_ACCEL")


def test_gpus_of_the_nvidia_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [NvidiaGpu(i, f"GPU-{i}", "NVIDIA H200", 1 << 30, "580.65.06") for i in range(2)]
    monkeypatch.setattr(machine, "list_gpus", lambda: gpus)
    found = machine.VENDORS["NV_GPU"][1]()
    assert found == [
        LocalDevice("0", "NVIDIA H200", "GPU-0"),
        LocalDevice("1", "NVIDIA H200", "GPU-1"),
    ]


def test_an_nvidia_driver_that_does_not_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NvidiaDriverError("it did not answer within 20 s")

    monkeypatch.setattr(machine, "list_gpus", fail)
    monkeypatch.setattr(machine.glob, "glob", lambda pattern: [])
    with pytest.warns(UserWarning, match="NVIDIA driver does not work: it did not answer"):
        assert machine.VENDORS["NV_GPU"][1]() == []


def test_a_failing_tool_means_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/bin/false")

    def fail(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("rocm-smi", 20)

    monkeypatch.setattr(machine.subprocess, "run", fail)
    assert machine._run("rocm-smi") == ""


def test_import_is_light() -> None:
    code = (
        "import sys, rlinf.config.placement, rlinf.scheduler.placement;"
        "print([m for m in ('torch', 'ray', 'pydantic', 'omegaconf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
