"""The store through which the members of a device group find each other."""

from __future__ import annotations

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
