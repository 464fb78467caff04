"""Hosts of a bed are machines of their own, and nothing of them outlives the bed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf.testbed import HostBed, HostBedError

PORT = 7001
LISTEN = f"""
import socket
both = dict(family=socket.AF_INET6, dualstack_ipv6=True)
with socket.create_server(("", {PORT}), **both) as server:
    print("ready", flush=True)
    while True:
        peer, _ = server.accept()
        size = 0
        while data := peer.recv(1 << 20):
            size += len(data)
        peer.sendall(str(size).encode())
        peer.close()
"""
SEND = f"""
import socket, sys, time
size = int(sys.argv[2])
begin = time.monotonic()
with socket.create_connection((sys.argv[1], {PORT}), timeout=float(sys.argv[3])) as peer:
    peer.sendall(bytes(size))
    peer.shutdown(socket.SHUT_WR)
    assert int(peer.recv(100)) == size
print(time.monotonic() - begin)
"""


@pytest.fixture(scope="module")
def bed(hosts):
    """Two hosts without Ray, which can be cut off and killed."""
    with HostBed(2) as bed:
        yield bed


@pytest.fixture(scope="module")
def listening(bed):
    """A program on the second host that takes what is sent to it."""
    server = bed.hosts[1].start([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    yield bed.hosts[1]
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    server.stdout.close()


def send(bed: HostBed, host: str, size: int, seconds: float = 60.0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", SEND, host, str(size), str(seconds)]
    return bed.hosts[0].run(command, capture_output=True, text=True)


def ask(bed: HostBed, host: int, *command: str) -> str:
    done = bed.hosts[host].run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_each_host_is_a_machine_of_its_own(bed):
    assert [ask(bed, n, "hostname") for n in (0, 1)] == ["host0", "host1"]
    ask(bed, 0, "touch", "/tmp/mine", "/dev/shm/mine")
    there = bed.hosts[1].run(["ls", "/tmp/mine", "/dev/shm/mine"], capture_output=True)
    assert there.returncode == 2 and not Path("/dev/shm/mine").exists()
    ask(bed, 0, "touch", str(bed.shared / "ours"))
    assert ask(bed, 1, "ls", str(bed.shared)) == "ours"
    clock = [sys.executable, "-c", "import time; print(time.monotonic())"]
    ahead = [float(ask(bed, n, *clock)) - time.monotonic() for n in (0, 1)]
    assert ahead == pytest.approx([1000, 2000], abs=100)
    # Its first process is its own, and few are there besides.
    assert len([name for name in ask(bed, 0, "ls", "/proc").split() if name.isdigit()]) < 10


def test_hosts_reach_each_other_by_name_and_both_kinds_of_addresses(bed, listening):
    for name in (listening.name, listening.ip, listening.ipv6):
        sent = send(bed, name, 1000)
        assert sent.returncode == 0, sent.stderr
    assert ask(bed, 0, "getent", "hosts", "host1").split() == [listening.ip, "host1"]


def test_what_passes_is_counted_and_the_speed_can_be_set(bed, listening):
    size = 4 << 20
    before = listening.traffic()
    assert send(bed, listening.ip, size).returncode == 0
    sent, received = (now - then for now, then in zip(listening.traffic(), before, strict=True))
    assert size < received < 1.1 * size and sent < size
    listening.slow(16e6)
    seconds = float(send(bed, listening.ip, size).stdout)
    listening.slow(None)
    # 32 Mbit at 16 Mbit/s, less what the bucket lets through at once.
    assert seconds > 1.5
    assert float(send(bed, listening.ip, size).stdout) < seconds


def test_a_link_is_cut_and_restored(bed, listening):
    bed.hosts[0].cut()
    failed = send(bed, listening.ip, 10, seconds=0.5)
    bed.hosts[0].restore()
    assert failed.returncode != 0 and "TimeoutError" in failed.stderr
    assert send(bed, listening.ip, 10).returncode == 0


def test_the_machine_itself_is_not_changed():
    before = socket.if_nameindex()
    with HostBed(1):
        assert socket.if_nameindex() == before


def test_a_killed_host_is_gone_with_all_that_ran_on_it(hosts):
    with HostBed(2) as bed:
        victim = bed.hosts[1]
        sleeper = victim.start(["sleep", "1000"])
        victim.kill()
        assert sleeper.wait(30) != 0
        assert [host.name for host in bed.hosts] == ["host0"]
        with pytest.raises(HostBedError):
            victim.cut()


def test_a_killed_program_leaves_no_host_behind(hosts):
    program = (
        "import subprocess, time; from rlinf.testbed import HostBed\n"
        "bed = HostBed(1)\n"
        "sleeper = bed.hosts[0].start(['sleep', '12345.5'])\n"
        "print(bed.hosts[0].pid, bed.shared, flush=True)\n"
        "time.sleep(1000)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    first, shared = owner.stdout.readline().split()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{first}").exists() or Path(shared).parent.exists():
        assert time.monotonic() < deadline, "the host, or its folder, is still there"
        time.sleep(0.05)
