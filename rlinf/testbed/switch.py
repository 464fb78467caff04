"""The switch of a bed: the process that has its bridge, lays links to hosts and can cut them.

It runs in a network namespace of its own, so that nothing is changed on the machine itself, and in
a user namespace of its own where it was not started by root. It takes orders from standard input,
one JSON object per line, and answers each with a line. At the end of its input it ends all hosts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from rlinf.testbed.shaping import shape

_BRIDGE = "switch"
_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--time")


class Switch:
    """A bridge, and a link from it to each host."""

    def __init__(self) -> None:
        self._route = IPRoute()
        self._route.link("add", ifname=_BRIDGE, kind="bridge")
        self._bridge = self._index(_BRIDGE)
        self._route.link("set", index=self._bridge, state="up")
        self._hosts: dict[int, subprocess.Popen[str]] = {}

    def add(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Start a host and lay a link to it; returns the process id of its first process."""
        number = settings["index"]
        clock = ["--monotonic", str(settings["clock"]), "--boottime", str(settings["clock"])]
        host = self._hosts[number] = subprocess.Popen(
            ["unshare", *_NAMESPACES, *clock, "--fork", "--kill-child", "--mount-proc"]
            + [sys.executable, "-m", "rlinf.testbed.host", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer(number)
        pid = int(Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text())
        port = f"port{number}"
        self._route.link(
            "add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_pid": pid}
        )
        self._route.link("set", index=self._index(port), master=self._bridge, state="up")
        self._order(number, {"op": "connect"})
        return {"pid": pid}

    def cut(self, index: int) -> dict[str, Any]:
        """Let nothing pass; neither side is told, as if a cable were cut somewhere between."""
        self._route.link("set", index=self._index(f"port{index}"), master=0)
        return {}

    def restore(self, index: int) -> dict[str, Any]:
        """Let everything pass again."""
        self._route.link("set", index=self._index(f"port{index}"), master=self._bridge)
        return {}

    def slow(self, index: int, bits_per_second: float | None) -> dict[str, Any]:
        """Set the speed of a link, in both directions."""
        shape(self._route, self._index(f"port{index}"), bits_per_second)
        self._order(index, {"op": "slow", "bits_per_second": bits_per_second})
        return {}

    def traffic(self, index: int) -> dict[str, Any]:
        """Return the bytes that a host has sent and received so far."""
        link = self._route.get_links(self._index(f"port{index}"))[0]
        counted = link.get_attr("IFLA_STATS64")
        return {"sent": counted["rx_bytes"], "received": counted["tx_bytes"]}

    def kill(self, index: int) -> dict[str, Any]:
        """End a host at once, as if its power failed: nothing that it says at its end gets out."""
        self.cut(index)
        host = self._hosts.pop(index)
        # The end of this one ends the first process of the host, and that ends all others.
        host.kill()
        host.wait()
        self._route.link("del", index=self._index(f"port{index}"))
        return {}

    def close(self) -> None:
        """End all hosts."""
        for host in self._hosts.values():
            host.kill()
        for host in self._hosts.values():
            host.wait()

    def _index(self, name: str) -> int:
        found = self._route.link_lookup(ifname=name)
        if not found:
            raise LookupError(f"there is no {name}; has its host been killed?")
        return found[0]

    def _order(self, number: int, order: dict[str, Any]) -> None:
        stream = self._hosts[number].stdin
        stream.write(json.dumps(order) + "\n")
        stream.flush()
        self._answer(number)

    def _answer(self, number: int) -> None:
        line = self._hosts[number].stdout.readline()
        error = json.loads(line).get("error") if line else "it has ended"
        if error:
            raise RuntimeError(f"host {number}: {error}")


def main() -> None:
    """Take orders until there are no more; then remove the folder of the bed, the only argument."""
    switch = None
    try:
        switch = Switch()
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            try:
                answer = getattr(switch, order.pop("op"))(**order)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        if switch is not None:
            switch.close()
        shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
