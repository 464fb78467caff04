"""Worker processes that serve one whole job after the other.

Starting a process costs seconds, most of it imports. A test that leaves its workers sound gets
processes that have served before: they begin again with the configuration of the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from rlinf.config import build_config, validate_cfg
from rlinf.config.acting import resolve_acting
from rlinf.scheduler import Cluster, HybridComponentPlacement, Worker, WorkerGroup, begin_exchange


class BeginsAgain:
    """A worker that can serve the next test."""

    def begin_again(self, *args: Any) -> None:
        """Is from now on as if it had been made with these arguments."""
        self.on_shutdown()
        # A second object of this process; this one takes over all that it has.
        self.__dict__ = type(self)(*args).__dict__


class RunnerFactory:
    """Makes runners of real worker groups.

    Args:
        cluster: where they are launched.
        configs: folder of recipes.
        workers: by role, worker classes that begin again.
        make_runner: makes a runner of the configuration and the groups by role.
        kept: roles and places that several tests have; others are given up after each test.
        optional: by role, worker classes of groups that only some placements name, and what their
            constructors take besides the configuration.
        acting: class of env workers that act themselves, where the configuration comes to that.
    """

    _current: ClassVar[RunnerFactory | None] = None

    def __init__(
        self,
        cluster: Cluster,
        configs: Path,
        workers: Mapping[str, type[Worker]],
        make_runner: Callable[..., Any],
        kept: set[tuple[str, str]],
        optional: Mapping[str, tuple[type[Worker], tuple[Any, ...]]] = MappingProxyType({}),
        acting: type[Worker] | None = None,
    ):
        if RunnerFactory._current is not None:
            # Of other roles: its processes are not needed any more.
            RunnerFactory._current.end_of_test(sound=False)
        RunnerFactory._current = self
        self._cluster = cluster
        self._configs = configs
        self._workers = workers
        self._make_runner = make_runner
        self._kept = kept
        self._optional = optional
        self._acting = acting
        self._groups: dict[tuple[str, str], WorkerGroup] = {}
        self._guests: list[WorkerGroup] = []

    def runner(
        self,
        folder: Path,
        recipe: str,
        overrides: list[str],
        workers: Mapping[str, tuple[type[Worker], tuple[Any, ...]]] = MappingProxyType({}),
    ) -> Any:
        """A runner whose workers are ready.

        Args:
            folder: where runs are written.
            recipe: name of the recipe.
            overrides: values to set in it.
            workers: by role, worker classes whose processes are new, have the names of the recipe
                and end with the test; with what their constructors take besides the configuration.
                `acting` are env workers that act.
        """
        # Evaluations before the training are for tests that ask for them.
        overrides = ["runner.eval_at_start=false", *overrides]
        overrides += [f"runner.logger.log_path={folder}", "runner.progress=off"]
        cfg = build_config(recipe, overrides=overrides, config_path=self._configs)
        placed = cfg.cluster.component_placement
        known = {role: (cls, ()) for role, cls in self._workers.items()}
        known |= {role: given for role, given in self._optional.items() if role in placed}
        together = self._acts_in_env(cfg, workers)
        if "acting" in workers:
            workers = {**workers, "env": workers["acting"]}
        if together:
            del known["rollout"]
            known["env"] = self._acting, ()
        places = {role: str(placed[role]) for role in known}
        keys = {role: ("acting" if together and role == "env" else role) for role in known}
        regulars = [role for role in known if role not in workers]
        names = [f"++{role}.group_name={keys[role]}@{places[role]}" for role in regulars]
        cfg = build_config(recipe, overrides=[*overrides, *names], config_path=self._configs)
        cfg = validate_cfg(cfg)
        if together:
            cfg = resolve_acting(cfg)
        placement = HybridComponentPlacement(cfg, self._cluster)
        groups = {}
        for role, (cls, args) in known.items():
            strategy = placement.get_strategy(role)
            if role in regulars:
                groups[role] = self._group((keys[role], places[role]), cls, (cfg, *args), strategy)
            else:
                guest, args = workers[role]
                groups[role] = guest.create_group(cfg, *args).launch(
                    self._cluster, strategy, name=cfg[role].group_name
                )
                self._guests.append(groups[role])
        begin_exchange(*groups.values())
        if together:
            groups["rollout"] = groups["env"]
        runner = self._make_runner(cfg, **groups)
        runner.init_workers()
        return runner

    def _acts_in_env(self, cfg: Any, workers: Mapping[str, Any]) -> bool:
        if self._acting is None or not workers.keys().isdisjoint({"env", "rollout"}):
            return False
        if "acting" in workers:
            return True
        return resolve_acting(validate_cfg(cfg)).rollout.in_env_process

    @staticmethod
    def group_names(places: Mapping[str, str]) -> list[str]:
        """Overrides that name the groups as those of the runners are named.

        Args:
            places: ranks in the placement, by role.
        """
        return [f"++{role}.group_name={role}@{place}" for role, place in places.items()]

    def _group(
        self, key: tuple[str, str], cls: type, args: tuple[Any, ...], strategy: Any
    ) -> WorkerGroup:
        group = self._groups.get(key)
        if group is None:
            group = cls.create_group(*args).launch(self._cluster, strategy, name="@".join(key))
            self._groups[key] = group
        else:
            group.begin_again(*args).wait()
        return group

    def end_of_test(self, sound: bool) -> None:
        """Closes what the next test does not need, or should not trust."""
        for guest in self._guests:
            guest._close()
        self._guests.clear()
        for key in [key for key in self._groups if key not in self._kept or not sound]:
            self._groups.pop(key)._close()
