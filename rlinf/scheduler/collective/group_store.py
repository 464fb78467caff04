"""The stores through which the members of a group of processes find each other."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

from rlinf.scheduler.net.binding import bind, family

_CONNECT = timedelta(seconds=60)
_ATTEMPT = timedelta(seconds=5)
"""After which it is seen again whether the other side is there at all."""


def listen(host: str, ports: tuple[int, int] | None = None) -> socket.socket:
    """Listen on a free port of an address, on which the other members find the source.

    Args:
        host: the address.
        ports: lowest and highest port of `cluster.port_range`, if there is one.
    """
    listener = socket.socket(family(host), socket.SOCK_STREAM)
    try:
        bind(listener, host, 0, ports)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def of_workers() -> Any:
    """Return the store of this worker's group, for `torch.distributed.init_process_group`.

    The one that torch makes by itself listens at all addresses of its machine, and does whatever
    anybody asks for. This one listens at MASTER_ADDR only, which is loopback if there is one node.
    """
    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank:
        return dist.TCPStore(host, port, size, is_master=False, timeout=default_pg_timeout)
    with socket.socket(family(host), socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        return dist.TCPStore(
            host,
            port,
            size,
            is_master=True,
            timeout=default_pg_timeout,
            master_listen_fd=listener.detach(),
        )


class Server:
    """The store through which members find each other; the source has it."""

    def __init__(self, listener: socket.socket):
        import torch.distributed as dist

        host, port = listener.getsockname()[:2]
        self._store: Any = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def close(self) -> None:
        """End the store; whoever waits in it gets an error."""
        self._store = None


def join(place: tuple[str, int]) -> Any:
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
