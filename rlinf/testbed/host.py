"""The first process of a host: it sets the host up, and the host lives as long as it does.

It runs in fresh namespaces for its network, mounts, processes, name and clock. Its settings come as
its argument; then it takes orders from standard input, one JSON object per line, and answers each
with a line. The end of its input is the end of the host, and the kernel ends all processes of it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from rlinf.testbed.addresses import INTERFACE, PREFIX_V4, PREFIX_V6
from rlinf.testbed.shaping import shape

PRIVATE = ("/tmp", "/dev/shm")
"""Folders of which every host has its own."""


def _mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True)


def _make_private(folder: str, size: str, kept: list[str], staging: Path) -> None:
    """Put an empty folder in the place of one; what lies under `kept` stays where it is."""
    inside = [path for path in kept if Path(folder) in Path(path).parents]
    fresh = staging / folder.strip("/").replace("/", "-")
    fresh.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(fresh))
    for path in inside:
        place = fresh / Path(path).relative_to(folder)
        place.mkdir(parents=True, exist_ok=True)
        _mount("--rbind", path, str(place))
    _mount("--rbind", str(fresh), folder)


def set_up(settings: dict[str, Any]) -> None:
    """Give the host its name, its folders and its loopback."""
    socket.sethostname(settings["name"])
    _mount("--bind", settings["hosts_file"], "/etc/hosts")
    for folder in PRIVATE:
        _make_private(folder, settings["tmp_size"], settings["keep"], Path(settings["staging"]))
    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")


def connect(settings: dict[str, Any]) -> None:
    """Use the link that the switch has laid to this host."""
    with IPRoute() as route:
        index = route.link_lookup(ifname=INTERFACE)[0]
        # No probing for others that have the address: nobody has.
        Path(f"/proc/sys/net/ipv6/conf/{INTERFACE}/accept_dad").write_text("0")
        route.addr("add", index=index, address=settings["ip"], prefixlen=PREFIX_V4)
        route.addr("add", index=index, address=settings["ipv6"], prefixlen=PREFIX_V6)
        route.link("set", index=index, state="up")


def slow(bits_per_second: float | None) -> None:
    """Set the speed of what leaves the host."""
    with IPRoute() as route:
        shape(route, route.link_lookup(ifname=INTERFACE)[0], bits_per_second)


def _take_orders(settings: dict[str, Any]) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["op"] == "connect":
                connect(settings)
            elif order["op"] == "slow":
                slow(order["bits_per_second"])
            answer = {}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _reap() -> None:
    """Take the exit codes of processes whose parents have ended, for ever."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # Blocked, so that none is missed between a look and the next wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break


def main() -> None:
    """Set the host up and keep it."""
    settings = json.loads(sys.argv[1])
    try:
        set_up(settings)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        raise
    print(json.dumps({}), flush=True)
    threading.Thread(target=_take_orders, args=(settings,), daemon=True).start()
    _reap()


if __name__ == "__main__":
    main()
