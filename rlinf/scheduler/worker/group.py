"""`WorkerGroup`: the workers of one class, launched together and commanded as one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.current import current_runtime
from rlinf.scheduler.spec import LaunchOptions
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult
from rlinf.scheduler.worker.host import public_methods
from rlinf.scheduler.worker.launched import LaunchedGroup

MAX_CONCURRENCY = 2**31 - 1


class GroupStarter(Protocol):
    """Where groups are started and ended; see `Cluster`."""

    def start_group(
        self,
        name: str,
        worker_cls: type,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        *,
        strategy: Any,
        options: LaunchOptions,
    ) -> LaunchedGroup:
        """Start the workers of a group and wait until all have registered."""

    def stop_group(self, group: LaunchedGroup) -> None:
        """End the workers of a group and wait until they are gone."""


class WorkerGroup:
    """A group of workers of one class.

    Each public method of the class is a method of the group: it starts the method on all ranks (or
    on those named by `execute_on`) and returns a handle at once. The group itself has few names, so
    that workers are free to choose theirs.
    """

    def __init__(self, worker_cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._worker_cls = worker_cls
        self._args = args
        self._kwargs = kwargs
        self._launched: LaunchedGroup | None = None
        self._cluster: GroupStarter | None = None

    # -- launching ----------------------------------------------------------------------------

    def launch(
        self,
        cluster: GroupStarter,
        placement_strategy: Any = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        isolate_gpu: bool = True,
        restart: str | dict[str, int] | None = None,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
    ) -> WorkerGroup:
        """Start the workers, all ranks in parallel, and return when each has registered.

        Args:
            cluster: cluster to start on.
            placement_strategy: where; by default one worker per accelerator of the cluster, or a
                single worker on node 0 if there is none.
            name: unique name of the group; the name of the class by default.
            max_concurrency: calls that may run at once in a worker; by default 1, and 1000 for
                workers with coroutine methods.
            isolate_gpu: whether a worker sees only its own devices.
            restart: "never", or {"on_failure": n} ("on_failure: n") to start a dead rank again,
                at most n times; what the class says (`Worker.restart_policy`) by default.
            catch_system_failure: whether a worker that gets a fatal signal, such as SIGSEGV, leaves
                its stacks in its crash file; by default it does.
            disable_distributed_log: whether the workers have no log files; what they log and print
                then goes to the terminal only.

        Raises:
            WorkerDied: a worker died while starting.
            WaitTimeout: not all workers were up within `cluster.timeouts.launch`.
            Exception: whatever a worker's constructor raised.
        """
        if self._launched is not None:
            raise RuntimeError(f"group {self._launched.name!r} has been launched already")
        if max_concurrency is not None and not 1 <= max_concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"max_concurrency={max_concurrency} is not in 1..{MAX_CONCURRENCY}")
        if restart is None:
            restart = self._worker_cls.restart_policy(*self._args, **self._kwargs)
        options = LaunchOptions(
            max_concurrency=max_concurrency,
            isolate=isolate_gpu,
            restarts=parse_restart(restart),
            record_crashes=catch_system_failure is not False,
            log_to_file=not disable_distributed_log,
        )
        name = name or self._worker_cls.__name__
        WorkerAddress(name)
        self._cluster = cluster
        self._launched = cluster.start_group(
            name,
            self._worker_cls,
            (self._args, self._kwargs),
            strategy=placement_strategy,
            options=options,
        )
        return self

    @classmethod
    def from_group_name(
        cls, worker_cls: type, name: str, timeout: float | None = None
    ) -> WorkerGroup:
        """Find a running group by its name, from the driver or from a worker.

        Raises:
            WaitTimeout: no such group was complete within the deadline.
        """
        runtime = current_runtime()
        what = f"group {name!r} to be complete"
        infos = runtime.registry.ask("group", group=name, timeout=timeout, what=what)
        backend = runtime.backend
        actors = [backend.find(info.name, runtime.run.namespace) for info in infos]
        group = cls(worker_cls, (), {})
        group._launched = LaunchedGroup(name, runtime.supervisor, backend, actors, infos)
        return group

    # -- facts --------------------------------------------------------------------------------

    @property
    def worker_group_name(self) -> str:
        """Name of the group."""
        return self._running().name

    @property
    def worker_cls_name(self) -> str:
        """Name of the workers' class."""
        return self._worker_cls.__name__

    @property
    def worker_info_list(self) -> list[WorkerInfo]:
        """What the registry knows of each worker, in rank order."""
        return list(self._running().infos)

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self._running().actors)

    @property
    def launched(self) -> LaunchedGroup:
        """The running group behind this one, for those who do more than call methods."""
        return self._running()

    # -- calling ------------------------------------------------------------------------------

    def execute_on(self, *ranks: int) -> _RankView:
        """Return the same group, restricted to some ranks; results come in the order given."""
        size, name = self.world_size, self.worker_group_name
        if not ranks:
            raise ValueError(f"execute_on of group {name!r} needs at least one rank")
        bad = [r for r in ranks if not isinstance(r, int) or not 0 <= r < size]
        if bad:
            raise ValueError(
                f"execute_on{tuple(ranks)}: group {name!r} has ranks 0-{size - 1}, not "
                f"{', '.join(map(str, bad))}"
            )
        return _RankView(self, list(ranks))

    def __getattr__(self, name: str) -> Callable[..., WorkerGroupFuncResult]:
        if name.startswith("_"):
            raise AttributeError(
                f"{name!r} is private; only public methods of a worker can be called on its group"
            )
        if name not in public_methods(self._worker_cls):
            raise AttributeError(_no_such_method(self._worker_cls, name))
        function = _Method(self._running(), name, None)
        # Kept on the instance: the next call does not come here.
        self.__dict__[name] = function
        return function

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *public_methods(self._worker_cls)})

    def _running(self) -> LaunchedGroup:
        if self._launched is None:
            raise RuntimeError(
                f"group of {self._worker_cls.__name__} is not running: call launch(cluster, ...) "
                "first"
            )
        return self._launched

    def _close(self) -> None:
        """End all workers of the group; one that was found by its name goes on."""
        if self._launched is not None and self._cluster is not None:
            self._cluster.stop_group(self._launched)

    def __repr__(self) -> str:
        if self._launched is None:
            return f"<WorkerGroup of {self.worker_cls_name}, not launched>"
        return f"<WorkerGroup {self.worker_group_name}: {self.world_size} x {self.worker_cls_name}>"


class _RankView:
    """A group seen through `execute_on`."""

    def __init__(self, group: WorkerGroup, ranks: list[int]):
        self._group = group
        self._ranks = ranks

    def __getattr__(self, name: str) -> _Method:
        getattr(self._group, name)
        return _Method(self._group._running(), name, self._ranks)


class _Method:
    """A worker's method on a group."""

    def __init__(self, group: LaunchedGroup, name: str, ranks: list[int] | None):
        self._group = group
        self._name = name
        self._ranks = ranks

    def __call__(self, *args: Any, **kwargs: Any) -> WorkerGroupFuncResult:
        return self._group.call(self._name, self._ranks, args, kwargs)


def parse_restart(restart: str | dict[str, int]) -> int:
    """Return the number of restarts that a policy allows.

    Raises:
        ValueError: the policy is malformed.
    """
    allowed = "allowed: 'never', or {'on_failure': n} with n >= 1"
    if restart == "never":
        return 0
    if isinstance(restart, str):
        key, _, count = restart.partition(":")
        restart = {key.strip(): int(count)} if count.strip().isdigit() else {}
    limit = dict(restart).get("on_failure")
    if len(restart) != 1 or not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValueError(f"restart={restart!r} is not a restart policy; {allowed}")
    return limit


def _no_such_method(worker_cls: type, name: str) -> str:
    methods = public_methods(worker_cls)
    near = difflib.get_close_matches(name, methods, 3)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"worker class {worker_cls.__name__} has no public method {name!r}{hint}"


def refuse_clashes(worker_cls: type, names: Iterable[str]) -> None:
    """Refuse methods that the group has itself: they could not be called on the group.

    Args:
        worker_cls: the class of the workers.
        names: its own public methods.

    Raises:
        ValueError: there are such methods.
    """
    clash = sorted({n for n in vars(WorkerGroup) if not n.startswith("_")} & set(names))
    if clash:
        raise ValueError(
            f"{worker_cls.__name__} defines {', '.join(clash)}, which WorkerGroup uses itself; "
            "rename the method"
        )
