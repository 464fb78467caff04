"""One cluster for all whole jobs, and worker processes that serve many of them.

Starting a process costs seconds, most of it imports. A test that leaves its workers sound gets
processes that have served before: they begin again with the configuration of the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster, HybridComponentPlacement, Worker, WorkerGroup, begin_exchange
from tests.e2e_tests.embodied.cast import Actor, Env, Rollout

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "embodiment" / "config"
CAST = {"actor": Actor, "rollout": Rollout, "env": Env}
KEPT = {("actor", "0"), ("actor", "0-1"), ("rollout", "0"), ("env", "0-1")}
"""Roles and places that several tests have; others are given up after each test."""


class Troupe:
    """Makes runners of real worker groups."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._groups: dict[tuple[str, str], WorkerGroup] = {}
        self._guests: list[WorkerGroup] = []

    def runner(
        self,
        folder: Path,
        recipe: str,
        overrides: list[str],
        cast: Mapping[str, tuple[type[Worker], tuple[Any, ...]]] = MappingProxyType({}),
    ) -> EmbodiedRunner:
        """A runner whose workers are ready.

        Args:
            folder: where runs are written.
            recipe: name of the recipe.
            overrides: values to set in it.
            cast: by role, worker classes whose processes are new, have the names of the recipe and
                end with the test; with what their constructors take besides the configuration.
        """
        overrides = [*overrides, f"runner.logger.log_path={folder}", "runner.progress=off"]
        cfg = build_config(recipe, overrides=overrides, config_path=CONFIGS)
        places = {role: str(cfg.cluster.component_placement[role]) for role in CAST}
        regulars = [role for role in CAST if role not in cast]
        names = [f"{role}.group_name={role}@{places[role]}" for role in regulars]
        cfg = build_config(recipe, overrides=[*overrides, *names], config_path=CONFIGS)
        cfg = validate_cfg(cfg)
        placement = HybridComponentPlacement(cfg, self._cluster)
        groups = {}
        for role, cls in CAST.items():
            strategy = placement.get_strategy(role)
            if role in regulars:
                groups[role] = self._group((role, places[role]), cls, cfg, strategy)
            else:
                guest, args = cast[role]
                groups[role] = guest.create_group(cfg, *args).launch(
                    self._cluster, strategy, name=cfg[role].group_name
                )
                self._guests.append(groups[role])
        begin_exchange(*groups.values())
        runner = EmbodiedRunner(cfg, **groups)
        runner.init_workers()
        return runner

    def _group(self, key: tuple[str, str], cls: type, cfg: Any, strategy: Any) -> WorkerGroup:
        group = self._groups.get(key)
        if group is None:
            group = cls.create_group(cfg).launch(self._cluster, strategy, name="@".join(key))
            self._groups[key] = group
        else:
            group.begin_again(cfg).wait()
        return group

    def end_of_test(self, sound: bool) -> None:
        """Closes what the next test does not need, or should not trust."""
        for guest in self._guests:
            guest._close()
        self._guests.clear()
        for key in [key for key in self._groups if key not in KEPT or not sound]:
            self._groups.pop(key)._close()


@pytest.fixture(scope="session")
def cluster(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node with eight CPU slots, for all tests here."""
    logs = str(tmp_path_factory.mktemp("logs"))
    with Cluster(num_nodes=1, distributed_log_dir=logs) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _troupe(cluster: Cluster) -> Troupe:
    return Troupe(cluster)


@pytest.fixture
def troupe(_troupe: Troupe, request: pytest.FixtureRequest) -> Iterator[Troupe]:
    """Makes runners; its processes serve one test after the other."""
    failed = request.session.testsfailed
    yield _troupe
    _troupe.end_of_test(sound=request.session.testsfailed == failed)
