"""`Cluster`: the machines of a run and everything that is started on them."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.channel.spec import KEEPER_GROUP, ChannelSpec
from rlinf.scheduler.cluster import nodes as node_search
from rlinf.scheduler.cluster.driver_supervisor import DriverSupervisor
from rlinf.scheduler.cluster.groups import RunningGroups
from rlinf.scheduler.cluster.hooks import ExitHooks, tell_last
from rlinf.scheduler.cluster.interpreters import check_interpreters
from rlinf.scheduler.cluster.launcher import start_actors, worker_specs
from rlinf.scheduler.cluster.lost_nodes import note_lost
from rlinf.scheduler.cluster.ray_session import RaySession, alive_nodes
from rlinf.scheduler.cluster.run_files import RunFiles
from rlinf.scheduler.cluster.settings import (
    DEFAULT_TIMEOUTS,
    debug_mode,
    node_count,
    port_limits,
)
from rlinf.scheduler.cluster.shutdown import (
    DriverAccess,
    GroupShutdown,
    attempt,
    leave_ray,
    our_processes,
)
from rlinf.scheduler.collective.shm_budget import remove_unused_table
from rlinf.scheduler.debug.console import SERVICE as DEBUG_SERVICE
from rlinf.scheduler.debug.console import DebugConsole
from rlinf.scheduler.debug.debugger import DriverDebugger
from rlinf.scheduler.debug.debugger import install as install_debugger
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.events import Death
from rlinf.scheduler.failure.reporter import DRIVER
from rlinf.scheduler.inline.session import InlineSession
from rlinf.scheduler.peak_memory import PeakMemory
from rlinf.scheduler.placement import NodePlacementStrategy, PackedPlacementStrategy
from rlinf.scheduler.placement.base import Placement
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.run_secret import TOLD_IN_CLEAR, new_run_secret
from rlinf.scheduler.spec import LaunchOptions, RunSpec, WorkerSpec
from rlinf.scheduler.topology.node import NodeInfo
from rlinf.scheduler.topology.topology import ClusterTopology
from rlinf.scheduler.trace import start as start_trace
from rlinf.scheduler.traffic import Traffic
from rlinf.scheduler.worker.channel_keeper import ChannelKeeper
from rlinf.scheduler.worker.launched import LaunchedGroup
from rlinf.scheduler.worker.log_folder import default_log_dir, prepare_log_dir
from rlinf.scheduler.worker.ports import free_port
from rlinf.scheduler.worker.runtime import (
    ProcessRuntime,
    current_runtime,
    has_runtime,
    set_current_runtime,
)
from rlinf.scheduler.worker.worker import Worker
from rlinf.utils.phases import phases


class Cluster:
    """The nodes of a run, from the moment that they are known until all that ran there is gone.

    One per process. `Cluster(num_nodes=1)` and `Cluster(cluster_cfg=cfg.cluster)` start a run in a
    driver; `Cluster()` gives the one that exists, also inside a worker. Use it as a context
    manager, or call `shutdown()`; a program that just ends cleans up, too.

    Attributes:
        topology: the nodes and what they have.
        log_dir: folder of logs.
        files: in the driver, brings the files of the run together; see `RunFiles`.
    """

    _current: ClassVar[Cluster | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Cluster:
        """Give the existing cluster when nothing is asked for."""
        asked = any(value is not None for value in [*args, *kwargs.values()])
        if cls._current is not None:
            if asked:
                raise ClusterError(
                    "a cluster is running in this process already; shut it down before you "
                    "describe another, or use Cluster() to get it"
                )
            return cls._current
        return super().__new__(cls)

    def __init__(
        self,
        num_nodes: int | None = None,
        num_gpus_per_node: int | Mapping[str, Any] | None = None,
        *,
        cluster_cfg: Mapping[str, Any] | None = None,
        distributed_log_dir: str | None = None,
        trace: bool = True,
    ):
        """Start or join Ray, wait for the nodes and look at them.

        Args:
            num_nodes: number of nodes; 0 for all that Ray has.
            num_gpus_per_node: accelerators that each node must have; on machines without any it is
                the number of CPU slots. (A configuration in this place is taken as `cluster_cfg`.)
            cluster_cfg: the `cluster` section of a configuration.
            distributed_log_dir: folder of logs; by default `cluster.log_dir`, or a new one in
                `rlinf-<user id>` of the temporary folder.
            trace: record what every process does and waits for, in files beside the logs.

        Raises:
            ClusterError: the nodes are not there, or are not as described; or the folder of logs
                cannot be written to.
        """
        if Cluster._current is self:
            return
        if isinstance(num_gpus_per_node, Mapping):
            cluster_cfg, num_gpus_per_node = num_gpus_per_node, None
        self._server: RegistryServer | None = None
        self._session: RaySession | InlineSession | None = None
        self._supervisor: DriverSupervisor | None = None
        self._keepers: dict[tuple[int, ...], list[str]] = {}
        self._closed = False
        self._lock = threading.RLock()
        if cluster_cfg is None and num_nodes is None and has_runtime():
            self._attach()
        else:
            with phases.phase("start_ray"):
                self._create(
                    num_nodes, num_gpus_per_node, cluster_cfg or {}, distributed_log_dir, trace
                )
        Cluster._current = self

    # -- making -------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Learn of the cluster from inside a worker."""
        self._runtime: Any = current_runtime()
        self.run = self._runtime.run
        self.topology: ClusterTopology = self._runtime.registry.ask("take", key="topology")
        self.log_dir = Path(self.run.log_dir)
        ending = GroupShutdown(self._runtime.registry, self.timeout("shutdown") or 20.0)
        self._groups = RunningGroups(ending, self.timeout("launch"))

    def _create(
        self,
        num_nodes: int | None,
        num_gpus_per_node: int | None,
        cfg: Mapping[str, Any],
        log_dir: str | None,
        trace: bool,
    ) -> None:
        count = node_count(num_nodes, cfg.get("num_nodes"))
        if num_gpus_per_node is None:
            num_gpus_per_node = cfg.get("num_gpus_per_node")
        run_id = secrets.token_hex(4)
        named = log_dir or cfg.get("log_dir")
        self.log_dir = (Path(named) if named else default_log_dir(run_id)).absolute()
        prepare_log_dir(self.log_dir)
        timeouts = DEFAULT_TIMEOUTS | dict(cfg.get("timeouts") or {})
        ports = port_limits(cfg.get("port_range"))
        namespace = f"rlinf-{run_id}"
        old_sigterm = signal.getsignal(signal.SIGTERM)
        debug = debug_mode()
        if debug == "inline":
            self._session, trace = InlineSession(), False
        else:
            self._session = RaySession(
                cfg.get("address"),
                dashboard=bool(cfg.get("dashboard", False)),
                num_cpus=None,
                namespace=namespace,
            )
        try:
            self._cfg = cfg
            found = node_search.find_nodes(
                self._session, count, cfg, deadline=float(timeouts["nodes"] or 1e9)
            )
            plan = {**cfg, "num_gpus_per_node": num_gpus_per_node}
            self.topology = ClusterTopology.from_config(plan, found.nodes)
            if isinstance(self._session, RaySession):
                check_interpreters(self._session, self.topology)
            self._driver_node = found.driver_node
            several = len(self.topology.nodes) > 1
            secret, salt = new_run_secret(run_id)
            self.run = RunSpec(
                run_id=run_id,
                namespace=namespace,
                secret=secret,
                registry=[],
                driver_node_rank=self._driver_node.node_rank,
                num_nodes=len(self.topology.nodes),
                log_dir=str(self.log_dir),
                timeouts=timeouts,
                ray_processes=[(p.pid, p.create_time()) for p in our_processes()]
                if self._session.has_own_ray
                else [],
                import_path=[os.path.abspath(path) for path in sys.path],
                trace=trace,
                debug=debug != "0",
                ports=ports,
                salt=salt,
                encryption=bool(cfg.get("encryption", False)),
            )
            if several and salt is None:
                print(TOLD_IN_CLEAR, file=sys.stderr, flush=True)
            self._server = RegistryServer(
                secret,
                self._driver_node.comm_ips[0] if several else None,
                float(timeouts["reconnect"]),
                ports,
                self.run.tls,
            )
            self.run.registry = self._server.addresses
            self._server.on_unreachable = self._lose_hosts
            self._server.state.values["topology"] = self.topology
            start_trace(str(self.log_dir / "driver.trace") if trace else None)
            here = self._driver_node.node_rank
            others = [node for node in self.topology.nodes if node.node_rank != here]
            self.files = RunFiles(self._session, others, run_id)
            self.files.mark(self.log_dir)
            self.files.follow(self.log_dir)
            self._runtime = ProcessRuntime(
                "driver", self.run, self._driver_node.node_rank, self._driver_node.comm_ips
            )
            self._runtime.backend = self._session.backend
            self._runtime.introduce()
            set_current_runtime(self._runtime)
        except BaseException:
            if self._server is not None:
                self._server.close()
            self._session.close()
            raise
        self._driver_env = found.driver_env
        self._server.services["keepers"] = self._start_keepers
        self._supervisor = self._runtime.supervisor = DriverSupervisor(
            self._runtime.name,
            self.run,
            self._runtime.registry,
            self._server,
            self._session,
            self.topology.nodes,
            self._driver_node.node_rank,
            found.oom_kills,
        )
        console = DebugConsole(self._supervisor.pause_deadlines)
        self._server.services[DEBUG_SERVICE] = console.serve
        self._runtime.registry.on_death(lambda death: console.end_turn(death.name))
        self._runtime.registry.notify("watch_all")
        self._debugger = DriverDebugger(self._supervisor.pause_deadlines)
        install_debugger(self._debugger.breakpoint)
        if isinstance(self._session, InlineSession):
            self._session.backend.debugger = self._debugger
        ending = GroupShutdown(
            self._runtime.registry,
            self.timeout("shutdown") or 20.0,
            DriverAccess(
                self._server, self._session, self.topology.nodes, self._driver_node.node_rank
            ),
            self._supervisor.awake,
        )
        self._groups = RunningGroups(ending, self.timeout("launch"))
        self._hooks = ExitHooks(self.shutdown, self._fail, old_sigterm)

    # -- facts --------------------------------------------------------------------------------

    @classmethod
    def current(cls) -> Cluster:
        """Return the cluster of this process.

        Raises:
            RuntimeError: there is none.
        """
        if cls._current is None:
            if has_runtime():
                return cls()
            raise RuntimeError("there is no cluster in this process: create one with Cluster(...)")
        return cls._current

    @classmethod
    def has_initialized(cls) -> bool:
        """Return whether this process has a cluster."""
        return cls._current is not None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.topology.nodes)

    @property
    def num_accelerators(self) -> int:
        """Number of accelerators of all nodes."""
        return self.topology.num_accelerators

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """Cluster-wide accelerator ids of each node."""
        return self.topology.accelerator_ranks

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """Return a node by its rank."""
        return self.topology.get_node_info(node_rank)

    def get_node_ip(self, node_rank: int) -> str:
        """Address of a node."""
        return self.get_node_info(node_rank).node_ip

    def get_node_group(self, label: str = "cluster") -> Any:
        """Return a node group by its label, None if there is none."""
        return self.topology.get_node_group(label)

    def get_alive_nodes(self) -> list[NodeInfo]:
        """Return the nodes of the cluster that Ray says are alive, in rank order."""
        session = self._session
        found = session.alive_nodes() if isinstance(session, InlineSession) else alive_nodes()
        alive = {node.ray_id for node in found}
        return [node for node in self.topology.nodes if node.ray_id in alive]

    @staticmethod
    def find_free_port(max_port_num: int | None = None) -> int:
        """Return a port of this node that is free at this moment; nobody reserves it.

        Args:
            max_port_num: the highest port allowed; None is 65535.
        """
        return free_port(max_port_num)

    @staticmethod
    def get_full_env_var_name(var: ClusterEnvVar) -> str:
        """Return the name of a variable with its prefix, such as `RLINF_LOG_LEVEL`."""
        return ClusterEnvVar(var).full_name

    @staticmethod
    def get_sys_env_var(var: ClusterEnvVar, default: str | None = None) -> str | None:
        """Return the value of a variable in this process, or a default."""
        return ClusterEnvVar(var).get(default)

    def timeout(self, name: str) -> float | None:
        """Deadline of a kind of wait, in seconds."""
        return self.run.timeout(name)

    # -- groups -------------------------------------------------------------------------------

    @contextmanager
    def launch_together(self) -> Iterator[None]:
        """Let the groups that are launched in the block start at the same time.

        The block ends when the workers of all of them have registered; their methods are called
        after it. If one cannot be started, all of them are ended, and the block raises what
        `launch` raises.
        """
        with phases.phase("launch"), self._groups.started_together():
            yield

    @phases.phase("launch")
    def start_group(
        self,
        name: str,
        worker_cls: type,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        *,
        strategy: Any,
        options: LaunchOptions,
    ) -> LaunchedGroup:
        """Start the workers of a group and wait until all have registered; see `launch`."""
        if self._closed:
            raise ClusterError(f"group {name!r} cannot be started: the cluster has been shut down")
        if name in self._runtime.registry.ask("groups"):
            raise ValueError(f"there is a group {name!r} already; give this one another name")
        strategy = strategy or self._default_strategy()
        placements = strategy.get_placement(self.topology, options.isolate)
        driver_env = getattr(self, "_driver_env", {})
        specs = worker_specs(
            self.run, self.topology, placements, name, worker_cls.__name__, driver_env, options
        )
        actors = self._start_actors(specs, worker_cls, arguments, placements, options)
        closes_itself = worker_cls.on_shutdown is not Worker.on_shutdown
        runtime = self._runtime
        group = LaunchedGroup(name, runtime.supervisor, runtime.backend, actors, [], closes_itself)
        self._groups.start(group)
        return group

    def _start_actors(
        self,
        specs: list[WorkerSpec],
        worker_cls: type,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        placements: list[Placement],
        options: LaunchOptions,
    ) -> list[Any]:
        if isinstance(self._session, InlineSession):
            return self._session.start_actors(specs, worker_cls, arguments, options)
        return start_actors(specs, worker_cls, arguments, self.topology, placements, options)

    def stop_group(self, group: LaunchedGroup) -> None:
        """End the workers of a group and wait until they are gone; once."""
        self._groups.end(group)

    def _start_keepers(self, distributed: bool, node_rank: int) -> list[str]:
        """Start the processes that keep channels on some nodes, once; return their names."""
        nodes = tuple(range(self.num_nodes)) if distributed else (node_rank,)
        self.get_node_info(nodes[-1])
        with self._lock:
            if nodes not in self._keepers:
                label = "all" if distributed else f"node{node_rank}"
                group = ChannelKeeper.create_group().launch(
                    self, NodePlacementStrategy(list(nodes)), name=f"{KEEPER_GROUP}-{label}"
                )
                self._keepers[nodes] = [info.name for info in group.worker_info_list]
            return self._keepers[nodes]

    def _default_strategy(self) -> Any:
        if self.num_accelerators:
            return PackedPlacementStrategy(0, self.num_accelerators - 1)
        return NodePlacementStrategy([0])

    # -- failure ------------------------------------------------------------------------------

    def _lose_hosts(self, infos: list[WorkerInfo]) -> None:
        """Deal with workers whose host is not heard any more.

        Ray would wait for them far longer, and so would everybody who has called them.
        """
        for rank in {info.cluster_node_rank for info in infos}:
            self.files.lose(rank)
            note_lost([self.topology.nodes[rank].ray_id])
        self._groups.abandon([info.name for info in infos])

    def deaths(self) -> list[Death]:
        """Return all deaths of the run so far, in the order of time."""
        return self._runtime.supervisor.deaths()

    def dump_stacks(self) -> Path:
        """Write the Python stacks of all workers to files and return their folder."""
        return self._on_driver().dump_stacks()

    def _on_driver(self) -> DriverSupervisor:
        if self._supervisor is None:
            raise RuntimeError("only the driver can do this")
        return self._supervisor

    # -- traffic and memory --------------------------------------------------------------------

    def peak_memory(self) -> dict[str, PeakMemory]:
        """Return the most memory that each worker has taken so far, in bytes.

        Workers answer while they are busy; one that cannot is absent.
        """
        self._on_driver()
        assert self._server is not None
        return self._server.inquire("peak_memory", None, None, timeout=5.0)

    def traffic(self) -> Traffic:
        """Return items, bytes and seconds waited of each worker and peer so far."""
        self._on_driver()
        assert self._server is not None
        return self._server.inquire("traffic", None, None, timeout=5.0)

    def channel_stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of all channels, by name."""
        stats: dict[str, dict[str, float]] = {}
        for names in list(self._keepers.values()):
            spec = ChannelSpec("", keepers=tuple(names))
            for work in self._runtime.channels.ask_all(spec, "q.ask", "", "channels", None):
                for name, counters in work.wait().items():
                    total = stats.setdefault(name, dict.fromkeys(counters, 0))
                    for label, value in counters.items():
                        total[label] += value
        return stats

    # -- ending -------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.shutdown()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Explain the error that ends the run, end everything, and tell it last."""
        card = self._supervisor.explain(error) if self._supervisor is not None else None
        if self.run.debug and card is not None and card.who == DRIVER:
            self._debugger.post_mortem(error)
        self.shutdown()
        if card is not None:
            tell_last(card, error)

    @phases.phase("stop")
    def shutdown(self) -> None:
        """End all workers and, if this cluster started it, Ray; return when they are gone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if Cluster._current is self:
            Cluster._current = None
        if self._server is None:
            return
        assert self._session is not None
        self._hooks.remove()
        started = our_processes() if self._session.has_own_ray else []
        parts: dict[str, Callable[[], None]] = {
            "ending the workers": self._groups.end_all,
            "taking the files of other nodes": self._take_files,
            "naming what nobody read": self._report_unread,
            "leaving the run": self._runtime.close,
            "removing the table of shared memory": remove_unused_table,
            "ending the registry": self._server.close,
            "ending the trace": lambda: start_trace(None),
        }
        # Whatever fails, the rest is done, and the error that ends the run stays the one to tell.
        for what, part in parts.items():
            with attempt(what):
                part()
        leave_ray(self._session, started, self.timeout("shutdown") or 20.0)

    def _take_files(self) -> None:
        self.files.end(self.log_dir, self.timeout("shutdown") or 20.0)

    def _report_unread(self) -> None:
        """Name the keys of the configuration that nobody read, after a run that went well."""
        tracked = sys.modules.get("rlinf.config.tracked")
        assert self._server is not None
        if tracked is None or self._on_driver().reporter.card is not None:
            return
        reads = tracked.reads() | self._server.state.config_reads
        text = tracked.unread_report(self._cfg, reads)
        if text:
            print(text, file=sys.stderr, flush=True)
