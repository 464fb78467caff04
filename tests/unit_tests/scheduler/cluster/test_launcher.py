"""What workers are told of the devices that they have and see."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rlinf.config import plugins
from rlinf.scheduler import FlexiblePlacementStrategy, NodePlacementStrategy
from rlinf.scheduler.cluster.launcher import worker_specs
from rlinf.scheduler.spec import LaunchOptions, RunSpec, WorkerSpec
from rlinf.scheduler.topology.topology import assume_topology


def specs(
    strategy: object, isolate: bool, driver_env: Mapping[str, str] | None = None
) -> list[WorkerSpec]:
    topology = assume_topology({"num_nodes": 2}, 4)
    run = RunSpec("run", "run", b"", [], 0, 2, "/logs", {})
    placements = strategy.get_placement(topology, isolate)
    env = driver_env or {}
    return worker_specs(run, topology, placements, "group", "Worker", env, LaunchOptions())


@pytest.mark.parametrize("isolate", [True, False])
def test_devices_that_a_worker_sees_are_in_the_order_of_its_own_indices(isolate: bool) -> None:
    first, second = specs(FlexiblePlacementStrategy([[1, 3], [6]]), isolate)
    assert (first.accelerators, second.accelerators) == ([1, 3], [6])
    if isolate:
        assert (first.visible, second.visible) == ([1, 3], [6])
    else:
        assert (first.visible, second.visible) == ([0, 1, 2, 3], [4, 5, 6, 7])
    for spec in (first, second):
        shown = [int(device) for device in spec.env["CUDA_VISIBLE_DEVICES"].split(",")]
        assert [4 * spec.node_rank + device for device in shown] == spec.visible


def test_a_worker_that_was_given_a_node_sees_all_of_its_devices() -> None:
    (spec,) = specs(NodePlacementStrategy([1]), True)
    assert (spec.accelerators, spec.visible) == ([], [4, 5, 6, 7])


def test_a_worker_imports_the_modules_of_its_node_and_of_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = plugins.EXT_VARIABLE
    monkeypatch.setattr(plugins, "_config_extensions", {})
    (plain,) = specs(NodePlacementStrategy([0]), True)
    assert variable not in plain.env
    plugins._config_extensions["of_config"] = None
    (told,) = specs(NodePlacementStrategy([0]), True)
    assert told.env[variable] == "of_config"
    (merged,) = specs(NodePlacementStrategy([0]), True, {variable: "of_driver"})
    assert merged.env[variable] == "of_driver,of_config"
