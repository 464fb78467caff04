"""Processes in a torch.distributed group of their own, beside any group that the user has.

The first member is the source, and all others receive what it sends. The back-end is ``nccl`` for
CUDA tensors and ``gloo`` for those of the host, which is how links are tested where there is no
GPU. Tensors travel as bytes, since neither takes all dtypes.

What NCCL needs, and why it is done so:
    * A transfer is a kernel on each member's GPU, and the one that is launched first keeps its GPU
      busy until the others are launched. CUDA may make a thread wait for all kernels of its
      process, for instance where it loads code or frees memory. If two processes both wait so for a
      kernel that the other has yet to launch, none ever does. So a transfer begins when the tensors
      are there and all members have their turn, which a process gives to one transfer at a time: a
      launch can then wait only for transfers that began earlier. Members take their turns in the
      order of their names, so that groups never wait for each other in a circle. Kernels of the
      user's own groups take no turn; where these run beside transfers, CUDA_MODULE_LOADING=EAGER
      avoids most such waits.
    * torch's watchdog ends the process when a peer of a group dies. Nobody watches these groups:
      the thread that waits for a transfer sees the error itself.
    * A communicator cannot be given up while it is being set up. So that begins when all members
      have said that they are there.
    * A transfer to a dead peer may not end on its own. `DeviceGroup.abort` ends it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.collective import group_store
from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.deadlines import Deadline

if TYPE_CHECKING:
    import torch

SOURCE = 0
"""Rank of the member that sends."""

TensorSpec = tuple[tuple[int, ...], str]
"""Shape and name of the dtype, as in `((2, 3), "float32")`."""

_FOR_EVER = timedelta(days=365)
"""Whoever waits for a transfer has a deadline of its own; torch's must not come before."""

_OLD_MEETINGS = 32
"""Past meetings whose keys are deleted at once."""

_UNWATCHED = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}
_environment = threading.Lock()


@functools.cache
def available(backend: str) -> bool:
    """Return whether this process can take part in groups of a back-end."""
    import torch.distributed as dist

    if not dist.is_available():
        return False
    return dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available()


class Turn:
    """What a process gives to one of its groups at a time, while that begins a transfer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: DeviceGroup | None = None

    def take(self, group: DeviceGroup) -> None:
        """Wait for it.

        Raises:
            RuntimeError: the group has been aborted.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None or group.aborted)
            if group.aborted:
                raise RuntimeError("the group was aborted")
            self._owner = group

    def give_back(self, group: DeviceGroup) -> None:
        """Give it back if the group has it; from any thread."""
        with self._changed:
            if self._owner is group:
                self._owner = None
            self._changed.notify_all()


class GroupPlace(NamedTuple):
    """Where a process is in a group, and where the group is.

    Attributes:
        rank: of this process; that of the source is 0.
        order: ranks of all members, in the order in which they take their turns. All groups must
            agree on an order of processes, or two could wait for each other's turn.
        device: index of the GPU that this process uses; of no meaning for `gloo`.
        host: address of this process's node.
        store: host and port of the source's store.
    """

    rank: int
    order: tuple[int, ...]
    device: int
    host: str
    store: tuple[str, int]


class DeviceGroup:
    """One member's side of a group; used by one thread, except for `abort`.

    Attributes:
        aborted: whether it has been ended.
    """

    def __init__(
        self,
        backend: str,
        place: GroupPlace,
        options: CollectiveGroupOptions,
        turn: Turn,
        given_up: Callable[[], bool],
    ):
        """Join the others and wait for them.

        Args:
            backend: `nccl` or `gloo`.
            place: this process in the group.
            options: settings of NCCL; of no meaning for `gloo`.
            turn: that of this process.
            given_up: asked while the source waits for receivers; ends that if true.

        Raises:
            OSError: the source is not there any more.
            RuntimeError: it cannot be reached.
        """
        import torch
        import torch.distributed as dist

        self.aborted = False
        self._torch = torch
        self._rank = place.rank
        self._order = place.order
        self._turn = turn
        self._device: Any = None
        self._stream: Any = None
        size = len(place.order)
        store = self._store = group_store.join(place.store)
        store.set_timeout(_FOR_EVER)
        if backend == "nccl":
            self._device = torch.device("cuda", place.device)
            self._stream = torch.cuda.Stream(self._device)
            with _unwatched():
                settings = dist.ProcessGroupNCCL.Options()
                options.apply(settings)
                self._group: Any = dist.ProcessGroupNCCL(store, place.rank, size, settings)
        self._await_all(given_up)
        if backend == "nccl":
            self._group.eager_connect_single_device(self._device)
        else:
            settings = dist.ProcessGroupGloo._Options()
            settings._timeout = _FOR_EVER
            settings._devices = [dist.ProcessGroupGloo.create_device(hostname=place.host)]
            self._group = dist.ProcessGroupGloo(store, place.rank, size, settings)

    def _await_all(self, given_up: Callable[[], bool]) -> None:
        if self._rank != SOURCE:
            self._store.set(f"{self._rank} is there", "")
            self._store.wait(["all are there"])
            return
        receivers = [f"{rank} is there" for rank in self._order if rank != SOURCE]
        while not self._store.check(receivers):
            if given_up():
                raise RuntimeError("not all receivers came")
            time.sleep(0.005)
        self._store.set("all are there", "")

    def send(
        self, number: int, tensors: Sequence[torch.Tensor], ready: Any, limit: float | None
    ) -> None:
        """Send contiguous tensors to all others; return when they have left.

        Args:
            number: of the transfer, from 0 on; the same for all members.
            tensors: what to send.
            ready: CUDA event after which the tensors have their values; None on the host.
            limit: seconds after which a transfer that has begun is given up.
        """
        if ready is not None:
            ready.synchronize()
        self._move(number, tensors, limit)

    def receive(
        self, number: int, specs: Sequence[TensorSpec], limit: float | None
    ) -> list[torch.Tensor]:
        """Receive tensors from the source; return when they have come."""
        torch = self._torch
        device = self._device or "cpu"
        with self._on_stream():
            tensors = [
                torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                for shape, dtype in specs
            ]
        self._move(number, tensors, limit)
        return tensors

    def leave(self, number: int) -> None:
        """Return when all members are done with all transfers before this number."""
        if self._rank == SOURCE:
            self._store.wait([_came(number, rank) for rank in self._order if rank != SOURCE])
            self._store.set(_left(number), "")
            return
        self._store.set(_came(number, self._rank), "")
        # The source may close the store before the answer is here; it has what it waited for then.
        with contextlib.suppress(RuntimeError):
            self._store.wait([_left(number)])

    def abort(self) -> None:
        """End the group and what is under way in it; a transfer that ends so may be incomplete."""
        self.aborted = True
        self._turn.give_back(self)
        self._group.abort()

    def _move(self, number: int, tensors: Sequence[torch.Tensor], limit: float | None) -> None:
        """Let tensors of the source become those of all others."""
        import torch.distributed as dist

        with self._on_stream():
            with self._meeting(number):
                options = dist.BroadcastOptions()
                options.rootRank, options.rootTensor = SOURCE, 0
                works = [self._group.broadcast([_bytes(tensor)], options) for tensor in tensors]
            self._finish(works, limit)

    @contextlib.contextmanager
    def _meeting(self, number: int) -> Iterator[None]:
        """Run the body while all members have their turn."""
        store, own, order = self._store, self._rank, self._order
        try:
            if own == order[0]:
                # Others may be long in coming; other transfers have the turn meanwhile.
                store.wait([_came(number, rank) for rank in order[1:]])
            else:
                store.set(_came(number, own), "")
                store.wait([_has_turn(number, order[order.index(own) - 1])])
            self._turn.take(self)
            store.set(_has_turn(number, own), "")
            if own != order[-1]:
                store.wait([_has_turn(number, order[-1])])
            if own == SOURCE and number and number % _OLD_MEETINGS == 0:
                self._forget_before(number)
            yield
        finally:
            self._turn.give_back(self)

    def _forget_before(self, number: int) -> None:
        """Delete keys of past meetings: whoever comes to one is done with those before it."""
        for old in range(number - _OLD_MEETINGS, number):
            for rank in self._order:
                self._store.delete_key(_came(old, rank))
                self._store.delete_key(_has_turn(old, rank))

    def _finish(self, works: list[Any], limit: float | None) -> None:
        deadline = Deadline(limit)
        for work in works:
            pause = 2e-5
            # A question to NCCL finds errors, too, while a wait for the GPU would not. Gloo cannot
            # be asked, nor aborted: a transfer that a death cuts in two ends at the limit.
            while self._stream is not None and not work.is_completed():
                if deadline.passed():
                    raise TimeoutError(f"a transfer was not done after {limit:g} s")
                time.sleep(pause)
                pause = min(1.5 * pause, 1e-3)
            work.wait(_FOR_EVER if limit is None else timedelta(seconds=limit))

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else self._on_device()

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            yield


def _came(number: int, rank: int) -> str:
    return f"{number} came {rank}"


def _has_turn(number: int, rank: int) -> str:
    return f"{number} turn {rank}"


def _left(number: int) -> str:
    return f"{number} left"


def arrived(tensor: torch.Tensor) -> torch.Tensor:
    """Hand a received tensor to the current thread: on its device, in its stream."""
    if not tensor.is_cuda:
        return tensor
    import torch

    # It was made in the stream of the link, which must not use the memory again too early.
    tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor.to(torch.device("cuda", torch.cuda.current_device()))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view(-1).view(torch.uint8)


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Set what torch reads when a group is made, and from the environment only."""
    with _environment:
        before = {name: os.environ.get(name) for name in _UNWATCHED}
        os.environ.update(_UNWATCHED)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
