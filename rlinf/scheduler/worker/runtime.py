"""The process side of a run: lifeline, log, post-mortem record; one per process, the driver too."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlinf.scheduler import trace
from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.collective.broadcast import Broadcaster
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.exchange import Exchange
from rlinf.scheduler.collective.mailbox import Mailbox
from rlinf.scheduler.collective.shm_limit import given_limit
from rlinf.scheduler.current import (
    current_runtime,
    current_scope,
    has_runtime,
    set_current_runtime,
)
from rlinf.scheduler.deadlines import set_paused
from rlinf.scheduler.debug.debugger import WorkerDebugger, install
from rlinf.scheduler.events import Raised
from rlinf.scheduler.failure.record import PostMortemRecord
from rlinf.scheduler.failure.supervisor import Supervisor
from rlinf.scheduler.net import forks
from rlinf.scheduler.peak_memory import peak_memory
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec, WorkerSpec
from rlinf.scheduler.worker.backend import CallBackend, RayBackend
from rlinf.scheduler.worker.cancelling import CallCanceller
from rlinf.scheduler.worker.log_folder import prepare_log_dir
from rlinf.scheduler.worker.ports import free_port
from rlinf.scheduler.worker.remote_error import report_of

if TYPE_CHECKING:
    from rlinf.scheduler.channel.client import ChannelClient

_CALL: ContextVar[str | None] = ContextVar("rlinf_call", default=None)


class ProcessRuntime:
    """What a process of a run has: its name, its lifeline and its data endpoint.

    Attributes:
        name: name in the run: a worker's address, or "driver".
        run: what all processes of the run share.
        node_rank: node that the process runs on.
        node_ip: address of that node.
        registry: the lifeline.
        endpoint: where it sends and receives data.
        mailbox: point to point on top of that.
        exchange: what this process exchanges with other groups, as one.
        broadcaster: one to many on top of that.
        supervisor: what is known of workers that fail; the driver has one that knows more.
        backend: how calls of workers come back.
    """

    def __init__(
        self,
        name: str,
        run: RunSpec,
        node_rank: int,
        comm_ips: list[str],
        visible: list[int] | None = None,
        on_lost: Any = None,
    ):
        # Better now than at the first message.
        given_limit()
        self.name = name
        self.run = run
        self.node_rank = node_rank
        self.node_ip = comm_ips[0]
        self.registry = RegistryClient(
            run.registry,
            run.secret,
            name,
            tls=run.tls,
            local=node_rank == run.driver_node_rank,
            on_lost=on_lost,
            timeout=run.timeout("registry") or 60.0,
            reconnect=run.timeout("reconnect") or 10.0,
        )
        self.endpoint = Endpoint(name, run, node_rank, comm_ips, self.registry, visible)
        self.mailbox = Mailbox(self.endpoint)
        self.broadcaster = Broadcaster(self.endpoint, self.mailbox)
        self.exchange = Exchange(self.mailbox, self.broadcaster)
        self.supervisor = Supervisor(name, run, self.registry)
        scope = current_scope()
        self.backend: CallBackend = RayBackend() if scope is None else scope.backend

    def introduce(self) -> None:
        """Let others send to this process although it is no worker."""
        info = WorkerInfo(
            address=WorkerAddress(self.name),
            rank=0,
            group_world_size=1,
            cluster_node_rank=self.node_rank,
            node_ip=self.node_ip,
            pid=os.getpid(),
            endpoints=self.endpoint.addresses,
            memory_domain=self.endpoint.domain,
        )
        self.registry.ask("introduce", info=info)

    @cached_property
    def channels(self) -> ChannelClient:
        """This process's side of all channels."""
        from rlinf.scheduler.channel.client import ChannelClient

        return ChannelClient(self.endpoint)

    def close(self) -> None:
        """Leave the run."""
        if has_runtime() and current_runtime() is self:
            set_current_runtime(None)
        self.endpoint.close()
        self.registry.close()


def current_call() -> str | None:
    """Id of the group call that runs in this context."""
    return _CALL.get()


def set_current_call(call: str | None) -> None:
    """Note the group call that runs in this context."""
    _CALL.set(call)


class WorkerRuntime(ProcessRuntime):
    """The runtime of a worker process.

    Attributes:
        spec: what the worker was told.
        box: its post-mortem record.
        info: its entry in the registry.
        debugger: talks at the driver's terminal.
    """

    def __init__(self, spec: WorkerSpec):
        # Before the environment is changed: it says where Ray's token is.
        spec.run.derive_secret()
        os.environ.update(spec.env)
        scope = current_scope()
        if scope is None:
            # Those of Ray: by their end it notices that of this process.
            forks.close_open_ones_in_child()
        known = set(sys.path)
        sys.path.extend(p for p in spec.run.import_path if p not in known and os.path.isdir(p))
        self.spec = spec
        prepare_log_dir(spec.run.on_node(spec.run.log_dir))
        self.record = PostMortemRecord(
            spec.run.on_node(spec.record_file), spec.record_crashes, of_process=scope is None
        )
        if scope is None:
            trace.start(spec.trace_file and str(spec.run.on_node(spec.trace_file)))
        self.cancel = CallCanceller()
        super().__init__(
            spec.name,
            spec.run,
            spec.node_rank,
            spec.comm_ips or [spec.node_ip],
            spec.visible,
            on_lost=self._registry_lost if scope is None else None,
        )
        self.registry.on_inquiry("status", lambda _: self.record.activity)
        self.registry.on_inquiry("stacks", lambda _: self.stacks())
        self.registry.on_inquiry("leave", self._leave)
        self.registry.on_inquiry("traffic", lambda _: self.mailbox.traffic())
        self.registry.on_inquiry("peak_memory", lambda _: peak_memory())
        self.registry.on_inquiry("cancel", self.cancel.request)
        self.registry.on_inquiry("give_up", self.exchange.give_up)
        self.registry.on_inquiry("pause_deadlines", set_paused)
        port = self.lock_free_port()
        self.info = WorkerInfo(
            address=spec.address,
            rank=spec.address.rank,
            group_world_size=spec.world_size,
            cluster_node_rank=spec.node_rank,
            node_ip=spec.node_ip,
            node_port=port,
            pid=os.getpid(),
            accelerator_type=spec.accelerator_type,
            accelerator_model=spec.accelerator_model,
            accelerator_rank=spec.accelerator_rank,
            available_accelerators=list(spec.accelerators),
            hardware_infos=list(spec.hardware_infos),
            endpoints=self.endpoint.addresses,
            memory_domain=self.endpoint.domain,
            log_file=spec.log_file,
        )
        self.debugger = WorkerDebugger(self.registry) if scope is None else scope.backend.debugger
        if scope is None:
            install(self.debugger.breakpoint)
        set_current_runtime(self)

    def register(self) -> None:
        """Enter the registry and wait for the group's rank 0, whose port becomes MASTER_PORT."""
        group = self.spec.address.get_parent_address().get_name()
        lives, host, port = self.registry.ask(
            "register",
            info=self.info,
            timeout=self.run.timeout("launch"),
            what=f"rank 0 of group {group} to register",
        )
        self.info.incarnation = lives
        os.environ["MASTER_ADDR"] = host
        os.environ["MASTER_PORT"] = str(port)

    def lock_free_port(self, highest: int | None = None, attempts: int = 1000) -> int:
        """Find a free port of this node and reserve it for this process."""
        for _ in range(attempts):
            port = free_port(highest, self.run.ports)
            if self.registry.ask("port", node_rank=self.node_rank, port=port):
                return port
        raise RuntimeError(f"no free port on node {self.node_rank} after {attempts} tries")

    def report(self, method: str, error: BaseException, text: str) -> Raised:
        """Tell the registry that a method raised, so that the order of failures is known."""
        report = report_of(error, self.name, method, text)
        self.registry.notify("raised", report=report)
        return report

    def stacks(self) -> str:
        """Python stacks of all threads of this process."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def _leave(self, _: Any) -> set[str]:
        """Answer the driver's request to end: the config keys that were read here."""
        recorder = trace.current()
        if recorder is not None:
            recorder.flush()
        tracked = sys.modules.get("rlinf.config.tracked")
        return set(tracked.reads()) if tracked else set()

    def _registry_lost(self, reason: str) -> None:
        # Without its driver a worker has nothing to live for; leaving at once frees its devices.
        self.record.note_exit(exit_code=1)
        if self.node_rank == self.run.driver_node_rank:
            end_processes(self.run.ray_processes)
        os._exit(1)


def end_processes(processes: list[tuple[int, float]]) -> None:
    """Kill processes given by pid and start time, as far as they are still the same ones."""
    import psutil

    for pid, started in processes:
        try:
            process = psutil.Process(pid)
            if process.create_time() == started:
                process.kill()
        except psutil.Error:
            continue
