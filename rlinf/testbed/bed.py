"""A bed of hosts: several machines, as far as programs can tell, on one.

Each host has its own network, addresses, name, processes, clock, /tmp and /dev/shm. Home folders,
the installed packages and the source are those of the machine, as on a cluster with a shared file
system; so is the folder `shared` of the bed. Everything ends with the process that has made it,
however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf.testbed.addresses import host_ip, host_ipv6, host_name, hosts_file

_TOOLS = ("unshare", "nsenter", "mount")
_END_SECONDS = 20.0


class HostBedError(RuntimeError):
    """Hosts cannot be made here, or an order to one failed."""


def unavailable() -> str | None:
    """Return, in words, why there can be no hosts on this machine; None if there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (package util-linux)"
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        return "pyroute2 is not installed (extra `testbed`)"
    tried = subprocess.run(
        [*_unshare(), "--net", "--mount", "unshare", "--net", "--pid", "--time", "--fork"]
        + ["mount", "-t", "tmpfs", "tmpfs", "/tmp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        said = tried.stderr.strip().splitlines()
        return (
            "namespaces cannot be made, which takes root or user namespaces "
            f"({said[-1] if said else f'exit code {tried.returncode}'})"
        )
    return None


def _unshare() -> list[str]:
    """Return the command that begins a bed; whoever is not root becomes it, in there alone."""
    return ["unshare"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]


class Host:
    """One host of a bed.

    Attributes:
        index: its number.
        name: its name.
        ip: its IPv4 address.
        ipv6: its IPv6 address.
        pid: process id, on this machine, of its first process.
    """

    def __init__(self, bed: HostBed, index: int, pid: int):
        self._bed = bed
        self.index = index
        self.name = host_name(index)
        self.ip = host_ip(index)
        self.ipv6 = host_ipv6(index)
        self.pid = pid

    def command(self, command: Sequence[str], cwd: str | os.PathLike[str] = "/") -> list[str]:
        """Return the command that runs a command on the host, started on this machine."""
        namespaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--time"]
        if os.geteuid() != 0:
            namespaces += ["--user", "--preserve-credentials"]
        there = ["env", "-C", str(cwd)]
        return ["nsenter", "--target", str(self.pid), *namespaces, *there, *map(str, command)]

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] = "/",
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command on the host, in a process group of its own.

        Args:
            command: the program and its arguments.
            env: variables besides those of this process; None takes one away.
            cwd: folder to start in.
            options: of `subprocess.Popen`.
        """
        return subprocess.Popen(
            self.command(command, cwd),
            env=environment(env),
            start_new_session=True,
            **options,
        )

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] = "/",
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on the host; see `start`, and `subprocess.run` for the options."""
        return subprocess.run(self.command(command, cwd), env=environment(env), **options)

    def cut(self) -> None:
        """Let nothing pass between this host and the others; connections are not told."""
        self._bed._order("cut", index=self.index)

    def restore(self) -> None:
        """Let everything pass again."""
        self._bed._order("restore", index=self.index)

    def slow(self, bits_per_second: float | None) -> None:
        """Set the speed of its link, in both directions; None is as fast as it can."""
        self._bed._order("slow", index=self.index, bits_per_second=bits_per_second)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that it has sent to other hosts, and received from them, so far."""
        counted = self._bed._order("traffic", index=self.index)
        return counted["sent"], counted["received"]

    def kill(self) -> None:
        """End it at once, as if its power failed."""
        self._bed._order("kill", index=self.index)
        self._bed.hosts.remove(self)

    def __repr__(self) -> str:
        """Show name and address."""
        return f"Host({self.name}, {self.ip})"


class HostBed:
    """Hosts that can reach each other and nothing else; a context manager.

    Args:
        count: number of hosts.
        clocks: by how many seconds the steady clock of each is ahead of this machine's; by default
            they differ, as those of machines do.
        keep: folders that all hosts see as they are here, besides this package, its interpreter and
            the working folder; only those under /tmp and /dev/shm need to be named.
        tmp_size: how much each host can keep in /tmp, and in /dev/shm.

    Attributes:
        hosts: the hosts, in the order of their numbers.
        shared: a folder that all of them see, at this path.

    Raises:
        HostBedError: there can be no hosts here; says why.
    """

    def __init__(
        self,
        count: int,
        clocks: Sequence[int] | None = None,
        keep: Sequence[str | os.PathLike[str]] = (),
        tmp_size: str = "8g",
    ):
        why_not = unavailable()
        if why_not:
            raise HostBedError(f"there can be no hosts on this machine: {why_not}")
        self.hosts: list[Host] = []
        self._folder = Path(tempfile.mkdtemp(prefix="rlinf-hosts-"))
        self.shared = self._folder / "shared"
        self.shared.mkdir()
        (self._folder / "hosts").write_text(hosts_file(count))
        package = Path(__file__).resolve().parents[2]
        kept = [package, Path.cwd(), sys.prefix, sys.base_prefix, self.shared, *keep]
        env = {**os.environ, "PYTHONPATH": _joined(str(package), os.environ.get("PYTHONPATH"))}
        self._switch = subprocess.Popen(
            [*_unshare(), "--net", "--mount", sys.executable, "-m", "rlinf.testbed.switch"]
            + [str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            # Ctrl-C is for the program that uses the hosts; it ends them.
            start_new_session=True,
        )
        try:
            self._answer("start")
            for index in range(count):
                settings = {
                    "index": index,
                    "name": host_name(index),
                    "ip": host_ip(index),
                    "ipv6": host_ipv6(index),
                    "clock": 1000 * (index + 1) if clocks is None else clocks[index],
                    "keep": _outermost(kept),
                    "hosts_file": str(self._folder / "hosts"),
                    "staging": str(self._folder / f"host{index}"),
                    "tmp_size": tmp_size,
                }
                added = self._order("add", settings=settings)
                self.hosts.append(Host(self, index, added["pid"]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> HostBed:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End all hosts."""
        self.close()

    def close(self) -> None:
        """End all hosts and what runs on them; files in their own /tmp are gone."""
        if self._switch.stdin is not None and not self._switch.stdin.closed:
            self._switch.stdin.close()
            try:
                self._switch.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._switch.kill()
                self._switch.wait()
            self._switch.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.hosts = []

    def _order(self, op: str, **arguments: Any) -> dict[str, Any]:
        try:
            self._switch.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._switch.stdin.flush()
        except (OSError, ValueError) as error:
            raise HostBedError(f"{op}: the hosts have ended ({error})") from error
        return self._answer(op)

    def _answer(self, op: str) -> dict[str, Any]:
        line = self._switch.stdout.readline()
        answer = json.loads(line) if line else {"error": "the hosts have ended"}
        if "error" in answer:
            raise HostBedError(f"{op}: {answer['error']}")
        return answer


def environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return the variables of this process with some changed; None takes one away."""
    wanted = {**os.environ, **(changes or {})}
    return {name: value for name, value in wanted.items() if value is not None}


def _joined(first: str, rest: str | None) -> str:
    return os.pathsep.join([first, rest] if rest else [first])


def _outermost(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return folders without those that lie in another one of them."""
    whole = sorted({Path(path).resolve() for path in paths})
    return [str(p) for p in whole if not any(q in p.parents for q in whole)]
