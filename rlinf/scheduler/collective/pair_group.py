"""Two processes in a torch.distributed group of their own, beside any group that the user has.

The back-end is ``nccl`` for CUDA tensors and ``gloo`` for those of the host, which is how links are
tested where there are no two GPUs. Tensors travel as bytes, since neither takes all dtypes.

What NCCL needs, and why it is done so:
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

if TYPE_CHECKING:
    import torch

SENDER, RECEIVER = 0, 1
"""Ranks in a group."""

TensorSpec = tuple[tuple[int, ...], str]
"""Shape and name of the dtype, as in `((2, 3), "float32")`."""

_CONNECT = timedelta(seconds=20)
_TRANSFER = timedelta(days=1)
"""Whoever waits for a transfer has a deadline of its own; this one only must not come before."""

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
    """Whether this process can take part in groups of a back-end."""
    import torch.distributed as dist

    if not dist.is_available():
        return False
    return dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available()


def listen(host: str) -> socket.socket:
    """A free port of an address, on which the sender's side of a group is found."""
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
        """Ends the store; whoever waits in it gets an error."""
        self._store = None


class PairGroup:
    """One side of a group of two; used by one thread, except for `abort`."""

    def __init__(
        self,
        backend: str,
        rank: int,
        device: int,
        place: tuple[str, int],
        given_up: Callable[[], bool],
    ):
        """Joins the other side and waits for it.

        Args:
            backend: `nccl` or `gloo`.
            rank: `SENDER` or `RECEIVER`.
            device: index of the GPU that this side uses; of no meaning for `gloo`.
            place: host and port of the sender's store.
            given_up: asked while the sender waits for the receiver; ends that if true.

        Raises:
            RuntimeError: the other side cannot be reached.
        """
        import torch
        import torch.distributed as dist

        self._torch = torch
        self._rank = rank
        self._device: Any = None
        self._stream: Any = None
        if rank == RECEIVER:
            # A closed port is known at once this way; the store would try again and again.
            socket.create_connection(place, _CONNECT.total_seconds()).close()
        store = dist.TCPStore(*place, is_master=False, wait_for_workers=False, timeout=_CONNECT)
        store.set_timeout(_TRANSFER)
        if backend == "nccl":
            self._device = torch.device("cuda", device)
            self._stream = torch.cuda.Stream(self._device)
            with _unwatched():
                options = dist.ProcessGroupNCCL.Options()
                self._group: Any = dist.ProcessGroupNCCL(store, rank, 2, options)
        if rank == RECEIVER:
            store.set("receiver", "is there")
        while rank == SENDER and not store.check(["receiver"]):
            if given_up():
                raise RuntimeError("the receiver did not come")
            time.sleep(0.005)
        if backend == "nccl":
            self._group.eager_connect_single_device(self._device)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, 2, _TRANSFER)

    def send(self, tensors: Sequence[torch.Tensor], ready: Any) -> None:
        """Sends contiguous tensors; returns when they have left.

        Args:
            tensors: what to send.
            ready: CUDA event after which the tensors have their values; None on the host.
        """
        with self._on_stream():
            if ready is not None:
                ready.wait(self._stream)
            self._finish([self._group.send([_bytes(t)], RECEIVER, 0) for t in tensors])

    def receive(self, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        """Receives tensors; returns when they have come."""
        torch = self._torch
        device = self._device or "cpu"
        with self._on_stream():
            tensors = [
                torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                for shape, dtype in specs
            ]
            self._finish([self._group.recv([_bytes(t)], SENDER, 0) for t in tensors])
        return tensors

    def abort(self) -> None:
        """Ends the group and what is under way in it; a transfer that ends so may be incomplete."""
        self._group.abort()

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else self._on_device()

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            yield

    def _finish(self, works: list[Any]) -> None:
        for work in works:
            pause = 2e-5
            # A question to NCCL finds errors, too, while a wait for the GPU would not. Gloo cannot
            # be asked; it knows by itself.
            while self._stream is not None and not work.is_completed():
                time.sleep(pause)
                pause = min(1.5 * pause, 1e-3)
            work.wait()


def arrived(tensor: torch.Tensor) -> torch.Tensor:
    """Hands a received tensor to the current thread: on its device, in its stream."""
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
    """Sets what torch reads when a group is made, and from the environment only."""
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
