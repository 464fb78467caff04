"""The entry script of language models places groups as the parallel sizes of the config say."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.scheduler.topology.topology import assume_topology

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "reasoning" / "main_grpo.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("main_grpo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def placed(script: Any, monkeypatch: pytest.MonkeyPatch, recipe: str, *overrides: str) -> dict:
    """Return the resource ranks of the processes of each group that the script launches."""
    found: dict[str, list[list[int]]] = {}

    class Assumed:
        def __init__(self, cluster_cfg: Any, **kwargs: Any):
            self.topology = assume_topology(cluster_cfg, 8)

        def __enter__(self) -> Assumed:
            return self

        def __exit__(self, *args: Any) -> None:
            pass

        def launch_together(self) -> Any:
            return contextlib.nullcontext()

    class Group:
        def launch(self, cluster: Any, name: str, placement_strategy: Any) -> Group:
            found[name] = placement_strategy.ranks_of_processes()
            return self

    class Runner:
        def __init__(self, cfg: Any, **groups: Any):
            pass

        def init_workers(self) -> None:
            pass

        run = init_workers

    monkeypatch.setattr(script, "Cluster", Assumed)
    monkeypatch.setattr(script, "run_folder", lambda cfg: Path("unused"))
    for worker in ("GenerationWorker", "RewardWorker", "ReasoningActor"):
        monkeypatch.setattr(getattr(script, worker), "create_group", lambda *args: Group())
    for runner in ("ReasoningRunner", "ReasoningEvalRunner"):
        monkeypatch.setattr(script, runner, Runner)
    script.run(validate_cfg(build_config(recipe, list(overrides), SCRIPT.parent / "config")))
    return found


def test_devices_of_an_engine_go_to_one_process(script: Any, monkeypatch: Any) -> None:
    where = "cluster.component_placement={actor:0-3,rollout:4-7,reward:0}"
    groups = placed(script, monkeypatch, "arithmetic_grpo", where, "rollout.tensor_parallel_size=2")
    assert groups["RolloutGroup"] == [[4, 5], [6, 7]]
    assert groups["ActorGroup"] == [[0], [1], [2], [3]]


def test_an_evaluation_is_placed_without_an_actor(script: Any, monkeypatch: Any) -> None:
    where = "cluster.component_placement={rollout:0-3,reward:0}"
    groups = placed(script, monkeypatch, "arithmetic_eval", where, "rollout.tensor_parallel_size=4")
    assert groups == {"RolloutGroup": [[0, 1, 2, 3]], "RewardGroup": [[0]]}
