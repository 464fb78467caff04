"""What a worker process is told when it is started."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.address import WorkerAddress
from rlinf.scheduler.places import place_on_node
from rlinf.scheduler.run_secret import own_run_secret

if TYPE_CHECKING:
    from rlinf.scheduler.net.certificate import RunTls


@dataclass
class RunSpec:
    """What all processes of a run share.

    Attributes:
        run_id: short unique name of the run.
        namespace: Ray namespace of its actors.
        secret: secret of the run; does not travel if there is a salt.
        registry: addresses of the registry.
        driver_node_rank: node of the driver, where the registry is.
        num_nodes: number of nodes.
        log_dir: folder of logs and evidence.
        timeouts: deadlines in seconds by name.
        ray_processes: (pid, start time) of what the driver started to have a Ray of its own;
            workers end them if the driver is killed and cannot.
        import_path: where the driver finds its modules; workers look there, too.
        trace: whether processes record what they do and wait for.
        debug: whether a worker that raises opens the debugger.
        ports: (lowest, highest) port that processes listen on; None is any.
        salt: what each process needs to derive the secret from Ray's token; None if it is told.
        encryption: whether connections between nodes are encrypted.
    """

    run_id: str
    namespace: str
    secret: bytes = field(repr=False)
    registry: list[tuple[Any, ...]]
    driver_node_rank: int
    num_nodes: int
    log_dir: str
    timeouts: dict[str, float | None]
    ray_processes: list[tuple[int, float]] = field(default_factory=list)
    import_path: list[str] = field(default_factory=list)
    trace: bool = True
    debug: bool = False
    ports: tuple[int, int] | None = None
    salt: bytes | None = field(default=None, repr=False)
    encryption: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what each process makes for itself."""
        state = {key: value for key, value in self.__dict__.items() if key != "tls"}
        return state if self.salt is None else state | {"secret": b""}

    def derive_secret(self) -> None:
        """Find the secret of a run of which another process has told.

        Raises:
            ClusterError: this process has no token of Ray's, and needs it.
        """
        if not self.secret and self.salt is not None:
            self.secret = own_run_secret(self.run_id, self.salt)

    @cached_property
    def tls(self) -> RunTls | None:
        """How this process encrypts connections to other nodes; None if it does not."""
        from rlinf.scheduler.net.certificate import RunTls

        return RunTls(self.secret) if self.encryption else None

    def on_node(self, path: str) -> Path:
        """Return where a process of the run, on this node, puts what belongs to a path of it."""
        return Path(path) if self.num_nodes == 1 else place_on_node(path, self.run_id)

    def timeout(self, name: str) -> float | None:
        """Deadline of a kind of wait."""
        return self.timeouts.get(name)


@dataclass(frozen=True)
class LaunchOptions:
    """How the workers of a group are started.

    Attributes:
        max_concurrency: calls that may run at once in a worker; None is Ray's default.
        isolate: whether a worker sees only its own devices.
        restarts: how often a rank that dies is started again.
        record_crashes: whether the interpreter reports fatal signals to the worker's crash file.
        log_to_file: whether a worker has a log file of its own.
    """

    max_concurrency: int | None = None
    isolate: bool = True
    restarts: int = 0
    record_crashes: bool = True
    log_to_file: bool = True


@dataclass
class WorkerSpec:
    """One worker of a group.

    Attributes:
        run: what all processes share.
        address: name of the worker.
        world_size: number of workers in the group.
        node_rank: rank of its node in the cluster.
        node_ip: address at which others reach it.
        comm_ips: addresses at which it exchanges data, that one first.
        env: environment variables to set before anything of the user's is imported.
        accelerator_type: kind of accelerator, or "NO_ACCEL".
        accelerator_model: its model.
        accelerator_rank: local rank of its first accelerator, -1 without one.
        accelerators: cluster-wide ids of its accelerators.
        visible: cluster-wide ids of the accelerators that it sees, by its own index of each.
        isolated: whether it sees only its own accelerators.
        hardware_infos: robots and other hardware given to it.
        lock_keys: names of the devices that its device lock covers.
        class_name: name of the worker's class.
        record_crashes: see `LaunchOptions`.
        log_to_file: see `LaunchOptions`.
    """

    run: RunSpec
    address: WorkerAddress
    world_size: int
    node_rank: int
    node_ip: str
    env: dict[str, str]
    comm_ips: list[str] = field(default_factory=list)
    accelerator_type: str = "NO_ACCEL"
    accelerator_model: str = ""
    accelerator_rank: int = -1
    accelerators: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    isolated: bool = True
    hardware_infos: list[Any] = field(default_factory=list)
    lock_keys: list[str] = field(default_factory=list)
    class_name: str = ""
    record_crashes: bool = True
    log_to_file: bool = True

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self.address.get_name()

    @property
    def log_file(self) -> str:
        """Where the log of the worker is, once it is collected; "" if it has none."""
        return worker_file(self.run.log_dir, self.name, ".log") if self.log_to_file else ""

    @property
    def record_file(self) -> str:
        """Where the worker's post-mortem record is."""
        return worker_file(self.run.log_dir, self.name, ".record")

    @property
    def trace_file(self) -> str | None:
        """Where the spans of the worker are, once collected; None if it records none."""
        return worker_file(self.run.log_dir, self.name, ".trace") if self.run.trace else None


def worker_file(log_dir: str, name: str, suffix: str) -> str:
    """Path of a worker's file: `<log_dir>/<group>/rank_<r><suffix>`."""
    address = WorkerAddress.from_name(name)
    rank = "_".join(map(str, address.ranks))
    return str(Path(log_dir) / address.root_group_name / f"rank_{rank}{suffix}")


def memory_domain() -> str:
    """Equal in two processes if they can open each other's descriptors under /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"
    except OSError:
        return f"unknown/{os.getpid()}"
