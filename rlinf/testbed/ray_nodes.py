"""Ray on the hosts of a bed, started as on the machines of a cluster."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rlinf.testbed.bed import Host, HostBed, HostBedError

PORT = 6379
_STARTS = 4
_TOO_SLOW = "timed out during startup"
_STORE_BYTES = 100 << 20


class RayNodes:
    """Ray on some hosts of a bed; the first of them is its head.

    Args:
        hosts: the hosts.
        ranks: `RLINF_NODE_RANK` of each; by default in their order. None leaves it unset.
        env: variables that Ray, and with it every worker, is started with.
        num_cpus: cores that Ray counts on each host.
        store_bytes: size of Ray's object store on each host; our data does not go through it.

    Attributes:
        address: what drivers name as RAY_ADDRESS.
        env: variables that drivers need; None is for those that must not be set.

    Raises:
        HostBedError: it did not start; says what it said.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        ranks: Sequence[int | None] | None = None,
        env: Mapping[str, str] | None = None,
        num_cpus: int = 4,
        store_bytes: int = _STORE_BYTES,
    ):
        self.hosts = list(hosts)
        self.ranks = list(range(len(self.hosts))) if ranks is None else list(ranks)
        self.address = f"{self.hosts[0].ip}:{PORT}"
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # What this process has set for a Ray of its own is not for these.
        others: dict[str, str | None] = {n: None for n in os.environ if n.startswith("RAY_")}
        self._env = {**others, **token, **(env or {})}
        self._num_cpus = num_cpus
        self._store_bytes = store_bytes
        self.env = {**others, **token, "RAY_ADDRESS": self.address}
        self._start_all([0])
        self._start_all(list(range(1, len(self.hosts))))

    def _start(self, index: int) -> subprocess.Popen[str]:
        host, rank = self.hosts[index], self.ranks[index]
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        role = head if index == 0 else [f"--address={self.address}"]
        own = {} if rank is None else {"RLINF_NODE_RANK": str(rank)}
        options = [f"--node-ip-address={host.ip}", f"--num-cpus={self._num_cpus}"]
        options += [f"--object-store-memory={self._store_bytes}", "--disable-usage-stats"]
        return self._ray(index, "start", *role, *options, **own)

    def _ray(self, index: int, *words: str, **own: str) -> subprocess.Popen[str]:
        """Start a command of Ray's on a host; `ray stop` sees the processes of that host alone."""
        return self.hosts[index].start(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            env={**self._env, **own},
            cwd=os.getcwd(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _start_all(self, indices: Sequence[int]) -> None:
        """Start Ray on hosts at the same time; again where the machine was too busy for it."""
        for attempt in range(1, _STARTS + 1):
            started = {index: self._start(index) for index in indices}
            said = {index: process.communicate()[0] for index, process in started.items()}
            failed = [index for index in indices if started[index].returncode]
            if not failed:
                return
            first = failed[0]
            if attempt == _STARTS or not all(_TOO_SLOW in said[index] for index in failed):
                name = self.hosts[first].name
                raise HostBedError(f"Ray did not start on {name}:\n{said[first]}")
            for index in failed:
                self._ray(index, "stop", "--force").communicate()
            indices = failed


def bed_with_ray(count: int, **options: object) -> tuple[HostBed, RayNodes]:
    """Make a bed and start Ray on all of its hosts."""
    bed = HostBed(count)
    try:
        return bed, RayNodes(bed.hosts, **options)
    except BaseException:
        bed.close()
        raise
