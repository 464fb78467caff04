"""`Worker`: the base class of everything that runs in a process of its own."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.current import current_runtime, has_runtime
from rlinf.scheduler.torch_device import torch_device_type, torch_platform
from rlinf.scheduler.worker import timers
from rlinf.scheduler.worker.comm import CommMixin
from rlinf.scheduler.worker.group import WorkerGroup, refuse_clashes
from rlinf.scheduler.worker.host import public_methods
from rlinf.scheduler.worker.locks import DeviceLock
from rlinf.scheduler.worker.logs import note, worker_logger
from rlinf.scheduler.worker.runtime import WorkerRuntime, current_call


class _OfProcess:
    """A fact of this process, read on a worker class or on a worker.

    Args:
        read: finds it out.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, worker: Worker | None, cls: type) -> Any:
        return self._read()


class Worker(CommMixin):
    """Base class of a remote worker.

    Subclass it, launch a group with `MyWorker.create_group(args).launch(cluster, ...)` and call its
    public methods on the group: each call runs on all ranks. Methods may be coroutines. Inside a
    worker the process is set up for `torch.distributed.init_process_group` within its group: RANK,
    WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are there.

    Attributes:
        current_worker: the worker of this process, None in the driver.
        global_accelerator_ids: cluster-wide ids of the accelerators of this worker.
        accelerator_type: kind of those accelerators, or "NO_ACCEL".
        torch_device_type: "cuda", "xpu", "npu", "musa" or "cpu"; also on the class.
        torch_platform: the torch module of that name; also on the class.
    """

    current_worker: ClassVar[Worker | None] = None
    timer = staticmethod(timers.timed)
    torch_device_type = _OfProcess(torch_device_type)
    torch_platform = _OfProcess(torch_platform)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, member in vars(cls).items():
            if not name.startswith("_") and inspect.isasyncgenfunction(member):
                raise NotImplementedError(
                    f"{cls.__name__}.{name} is an asynchronous generator, which a group call "
                    "cannot return; put the items into a Channel, or return a list"
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> Worker:
        """Bind the new object to the runtime of its process, before the user's `__init__` runs."""
        self = super().__new__(cls)
        runtime = current_runtime() if has_runtime() else None
        if not isinstance(runtime, WorkerRuntime):
            raise RuntimeError(
                f"{cls.__name__} is a Worker and lives in a process of its own: launch it with "
                f"{cls.__name__}.create_group(...).launch(cluster, ...)"
            )
        spec = runtime.spec
        self._runtime = runtime
        self._rank = spec.address.rank
        self._world_size = spec.world_size
        self._group_name = spec.address.root_group_name
        self._worker_address = spec.address
        self._cluster_node_rank = spec.node_rank
        self._timers: dict[str, float] = {}
        self._group_sizes: dict[str, int] = {}
        self._device_lock = DeviceLock(runtime, spec.lock_keys)
        who = f"{self._group_name}-Rank-{spec.address.rank_path}"
        self._logger = worker_logger(
            spec.name, who, spec.log_file and str(spec.run.on_node(spec.log_file))
        )
        note(
            spec.name,
            logging.INFO,
            f"{cls.__name__} starts, pid {os.getpid()} on node {spec.node_rank} ({spec.node_ip})",
        )
        self.global_accelerator_ids = list(spec.accelerators)
        self.accelerator_type = spec.accelerator_type
        Worker.current_worker = self
        return self

    def __init__(self) -> None:
        """Nothing is left to do here; subclasses call it as `super().__init__()`."""

    # -- launching ----------------------------------------------------------------------------

    @classmethod
    def create_group(cls, *args: Any, **kwargs: Any) -> WorkerGroup:
        """Describe a group of this worker; `launch` starts it.

        Args:
            *args: arguments of the constructor, the same on each rank.
            **kwargs: keyword arguments of the constructor.
        """
        refuse_clashes(cls, [name for name in public_methods(cls) if not hasattr(Worker, name)])
        return WorkerGroup(cls, args, kwargs)

    @classmethod
    def restart_policy(cls, *args: Any, **kwargs: Any) -> str | dict[str, int]:
        """Return what `launch` does by default with ranks that die; override to restart them.

        Args:
            *args: arguments of the constructor.
            **kwargs: keyword arguments of the constructor.
        """
        return "never"

    # -- who am I -----------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Rank in the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of workers in the group."""
        return self._world_size

    @property
    def group_name(self) -> str:
        """Name of the group."""
        return self._group_name

    @property
    def worker_address(self) -> WorkerAddress:
        """Address of this worker."""
        return self._worker_address

    @property
    def worker_info(self) -> WorkerInfo:
        """What the registry knows of this worker."""
        return self._runtime.info

    @property
    def has_accelerator(self) -> bool:
        """Whether this worker has an accelerator."""
        return bool(self.global_accelerator_ids)

    @property
    def hardware_infos(self) -> list[Any]:
        """Robots and other hardware given to this worker."""
        return self._runtime.info.hardware_infos

    @property
    def hardware_type(self) -> str | None:
        """Type of that hardware; None without any."""
        infos = self.hardware_infos
        return getattr(infos[0], "type", None) if infos else None

    @property
    def device_lock(self) -> DeviceLock:
        """Lock over the devices of this worker, shared with all workers placed on them."""
        return self._device_lock

    @property
    def restarts(self) -> int:
        """How often this worker has been restarted."""
        return self._runtime.info.incarnation

    @property
    def cancel_requested(self) -> bool:
        """Whether the call that runs here was cancelled by its caller."""
        call = current_call()
        return call is not None and self._runtime.cancel.asked(call)

    def get_name(self) -> str:
        """Return the address of this worker as text, `group:rank`."""
        return self._worker_address.get_name()

    def get_parent_rank(self) -> int | None:
        """Return the rank of the worker that this one is nested in; None at the top."""
        return self._worker_address.get_parent_rank()

    @staticmethod
    def check_worker_alive(worker_name: str) -> bool:
        """Return whether the process of a worker runs, as far as the run knows.

        Args:
            worker_name: its address as text, `group:rank`.
        """
        return current_runtime().registry.ask("lives", worker=worker_name) is not None

    def acquire_free_port(self, max_port_num: int | None = None) -> int:
        """Return a free port of this node, reserved for this worker until it ends.

        Args:
            max_port_num: the highest port allowed; None is 65535.
        """
        return self._runtime.lock_free_port(max_port_num)

    # -- logging ------------------------------------------------------------------------------

    def log_debug(self, message: Any) -> None:
        """Log at level DEBUG."""
        self._logger.debug(message, stacklevel=2)

    def log_info(self, message: Any) -> None:
        """Log at level INFO."""
        self._logger.info(message, stacklevel=2)

    def log_warning(self, message: Any) -> None:
        """Log at level WARNING."""
        self._logger.warning(message, stacklevel=2)

    def log_error(self, message: Any) -> None:
        """Log at level ERROR."""
        self._logger.error(message, stacklevel=2)

    def log_on_first_rank(self, message: Any) -> None:
        """Log at level INFO on rank 0 only."""
        if self._rank == 0:
            self._logger.info(message, stacklevel=2)

    def log_on_last_rank(self, message: Any) -> None:
        """Log at level INFO on the last rank only."""
        if self._rank == self._world_size - 1:
            self._logger.info(message, stacklevel=2)

    # -- timing -------------------------------------------------------------------------------

    def worker_timer(self, tag: str | None = None) -> AbstractContextManager[None]:
        """Time a block; durations of the same tag add up. The default tag is the caller's name."""
        if tag is None:
            tag = inspect.currentframe().f_back.f_code.co_name  # type: ignore[union-attr]
        store = timers.of_call()
        store = self._timers if store is None else store
        return timers.Timer(store, tag, self._runtime.record)

    def pop_execution_times(self) -> dict[str, float]:
        """Take all durations recorded so far, in seconds by tag."""
        store = timers.of_call()
        store = self._timers if store is None else store
        taken = dict(store)
        store.clear()
        return taken

    def pop_execution_time(self, tag: str) -> float:
        """Take the duration recorded under one tag.

        Raises:
            ValueError: nothing was recorded under it.
        """
        store = timers.of_call()
        store = self._timers if store is None else store
        if tag not in store:
            raise ValueError(
                f"no time was recorded under {tag!r}; recorded: {sorted(store) or 'none'}"
            )
        return store.pop(tag)

    # -- ending -------------------------------------------------------------------------------

    def on_shutdown(self) -> None:
        """Called before the process ends in an orderly shutdown; override to close what is open."""
