"""Bare sockets, for `benchmarks.hosts`: `sendall` on one host, `recv_into` memory on the other.

`hosts_bare.py take PORT SIZE COUNT` answers each message with a byte; `hosts_bare.py give HOST PORT
SIZE COUNT` prints the seconds of each as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time

import numpy as np


def take(port: int, size: int, count: int) -> None:
    """Receive messages into memory that is there."""
    memory = memoryview(np.ones(size, np.uint8))
    with socket.create_server(("", port)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        with peer:
            for _ in range(count):
                filled = 0
                while filled < size:
                    filled += peer.recv_into(memory[filled:])
                peer.sendall(b"x")


def give(host: str, port: int, size: int, count: int) -> None:
    """Send messages and wait for each to be taken."""
    message = memoryview(np.ones(size, np.uint8))
    seconds = []
    with socket.create_connection((host, port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            begin = time.perf_counter()
            peer.sendall(message)
            peer.recv(1)
            seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds))


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "take":
        take(*map(int, rest))
    else:
        give(rest[0], *map(int, rest[1:]))
