"""Listening sockets: on any port, or on one of the range that an administrator has opened."""

from __future__ import annotations

import errno
import secrets
import socket


def bind(sock: socket.socket, host: str, port: int, ports: tuple[int, int] | None) -> None:
    """Bind to a port, or to any free one of a range.

    Args:
        sock: what to bind.
        host: address.
        port: the port; 0 is any.
        ports: lowest and highest port of `cluster.port_range`, if there is one.

    Raises:
        OSError: none is free, or the address is not of this machine; says which.
    """
    if ports is None or port:
        sock.bind((host, port))
        return
    allowed = range(ports[0], ports[1] + 1)
    # All processes of a node look for one at the same time.
    first = secrets.randbelow(len(allowed))
    for candidate in (*allowed[first:], *allowed[:first]):
        try:
            sock.bind((host, candidate))
            return
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise OSError(error.errno, f"{error.strerror}: {host}") from error
    raise OSError(
        errno.EADDRINUSE,
        f"no port of cluster.port_range {ports[0]}-{ports[1]} is free at {host}; use a wider range",
    )


def family(host: str) -> socket.AddressFamily:
    """Return the kind of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
