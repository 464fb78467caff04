"""Two processes in a torch.distributed group of their own, beside any group that the user has.

The back-end is ``nccl`` for CUDA tensors and ``gloo`` for those of the host, which is how links are
tested where there is no GPU. Tensors travel as bytes, since neither takes all dtypes.

What NCCL needs, and why it is done so:
    * A transfer is a kernel on each side, and the one that is launched first keeps its GPU busy
      until the other is launched. CUDA may make a thread wait for all kernels of its process, for
      instance where it loads code or frees memory. If two processes both wait so for a kernel that
      the other has yet to launch, none ever does. So a transfer begins when the tensors are there
      and both processes have their turn, which a process gives to one transfer at a time: a launch
      can then wait only for transfers that began earlier. Kernels of the user's own groups take no
      turn; where these run beside transfers, CUDA_MODULE_LOADING=EAGER avoids most such waits.
    * torch's watchdog ends the process when a peer of a group dies. Nobody watches these groups:
      the thread that waits for a transfer sees the error itself.
    * A communicator cannot be given up while it is being set up. So the sender begins when the
      receiver has said that it is there.
    * A transfer to a dead peer may not end on its own. `PairGroup.abort` ends it, from any thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.collective.options import CollectiveGroupOptions
from rlinf.scheduler.deadlines import Deadline

if TYPE_CHECKING:
    import torch

SENDER, RECEIVER = 0, 1
"""Ranks in a group."""

TensorSpec = tuple[tuple[int, ...], str]
"""Shape and name of the dtype, as in `((2, 3), "float32")`."""

_CONNECT = timedelta(seconds=60)
_ATTEMPT = timedelta(seconds=5)
"""After which it is seen again whether the other side is there at all."""

_FOR_EVER = timedelta(days=365)
"""Whoever waits for a transfer has a deadline of its own; torch's must not come before."""

_OLD_KEYS = 128
"""Keys of past meetings that are deleted at once."""

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


def listen(host: str) -> socket.socket:
    """Return a free port of an address, on which the sender's side of a group is found."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


class Server:
    """The store through which the two sides find each other; the sender has it."""

    def __init__(self, listener: socket.socket):
        import torch.distributed as dist

        host, port = listener.getsockname()[:2]
        self._store: Any = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def close(self) -> None:
        """End the store; whoever waits in it gets an error."""
        self._store = None


def _join_store(place: tuple[str, int]) -> Any:
    """Connect to a store.

    Raises:
        OSError: nobody listens there any more.
        RuntimeError: whoever listens there does not answer.
    """
    import torch.distributed as dist

    end = time.monotonic() + _CONNECT.total_seconds()
    while True:
        # A closed port is known at once this way; the store would try again and again.
        socket.create_connection(place, _CONNECT.total_seconds()).close()
        try:
            return dist.TCPStore(*place, is_master=False, wait_for_workers=False, timeout=_ATTEMPT)
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


class _Turn:
    """What a process gives to one of its groups at a time, while that begins a transfer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: Any = None

    def take(self, group: PairGroup) -> None:
        """Wait for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None)
            self._owner = group

    def give_back(self, group: PairGroup) -> None:
        """Give it back if the group has it; from any thread."""
        with self._changed:
            if self._owner is group:
                self._owner = None
                self._changed.notify_all()


_turn = _Turn()


class PairGroup:
    """One side of a group of two; used by one thread, except for `abort`."""

    def __init__(
        self,
        backend: str,
        rank: int,
        first: bool,
        device: int,
        place: tuple[str, int],
        options: CollectiveGroupOptions,
        given_up: Callable[[], bool],
    ):
        """Join the other side and wait for it.

        Args:
            backend: `nccl` or `gloo`.
            rank: `SENDER` or `RECEIVER`.
            first: whether this side takes its turn before the other does. All groups must agree on
                an order of processes, or two could wait for each other's turn.
            device: index of the GPU that this side uses; of no meaning for `gloo`.
            place: host and port of the sender's store.
            options: settings of NCCL; of no meaning for `gloo`.
            given_up: asked while the sender waits for the receiver; ends that if true.

        Raises:
            OSError: the other side is not there any more.
            RuntimeError: it cannot be reached.
        """
        import torch
        import torch.distributed as dist

        self._torch = torch
        self._rank = rank
        self._first = first
        self._device: Any = None
        self._stream: Any = None
        self._used_keys: list[str] = []
        store = self._store = _join_store(place)
        store.set_timeout(_FOR_EVER)
        if backend == "nccl":
            self._device = torch.device("cuda", device)
            self._stream = torch.cuda.Stream(self._device)
            with _unwatched():
                settings = dist.ProcessGroupNCCL.Options()
                options.apply(settings)
                self._group: Any = dist.ProcessGroupNCCL(store, rank, 2, settings)
        if rank == RECEIVER:
            store.set("receiver", "is there")
        while rank == SENDER and not store.check(["receiver"]):
            if given_up():
                raise RuntimeError("the receiver did not come")
            time.sleep(0.005)
        if backend == "nccl":
            self._group.eager_connect_single_device(self._device)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, 2, _FOR_EVER)

    def send(
        self, number: int, tensors: Sequence[torch.Tensor], ready: Any, limit: float | None
    ) -> None:
        """Send contiguous tensors; return when they have left.

        Args:
            number: of the transfer, from 0 on; the same on both sides.
            tensors: what to send.
            ready: CUDA event after which the tensors have their values; None on the host.
            limit: seconds after which a transfer that has begun is given up.
        """
        if ready is not None:
            ready.synchronize()
        with self._on_stream():
            with self._meeting(number):
                works = [self._group.send([_bytes(t)], RECEIVER, 0) for t in tensors]
            self._finish(works, limit)

    def receive(
        self, number: int, specs: Sequence[TensorSpec], limit: float | None
    ) -> list[torch.Tensor]:
        """Receive tensors; return when they have come."""
        torch = self._torch
        device = self._device or "cpu"
        with self._on_stream():
            tensors = [
                torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                for shape, dtype in specs
            ]
            with self._meeting(number):
                works = [self._group.recv([_bytes(t)], SENDER, 0) for t in tensors]
            self._finish(works, limit)
        return tensors

    def abort(self) -> None:
        """End the group and what is under way in it; a transfer that ends so may be incomplete."""
        _turn.give_back(self)
        self._group.abort()

    @contextlib.contextmanager
    def _meeting(self, number: int) -> Iterator[None]:
        """Run the body while both sides have their turn."""
        came, first_has, second_has = f"{number} came", f"{number} first", f"{number} second"
        try:
            if self._first:
                if self._rank == SENDER:
                    # The receiver may be long in coming; others have the turn meanwhile.
                    self._await(came)
                _turn.take(self)
                self._store.set(first_has, "")
                self._await(second_has)
            else:
                if self._rank == RECEIVER:
                    self._store.set(came, "")
                self._await(first_has)
                _turn.take(self)
                self._store.set(second_has, "")
            yield
        finally:
            _turn.give_back(self)

    def _await(self, key: str) -> None:
        self._store.wait([key])
        self._used_keys.append(key)

    def _finish(self, works: list[Any], limit: float | None) -> None:
        if len(self._used_keys) >= _OLD_KEYS:
            for key in self._used_keys:
                self._store.delete_key(key)
            self._used_keys.clear()
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
