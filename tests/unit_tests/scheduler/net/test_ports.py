"""Processes listen where the administrator has opened ports, and say what is in the way."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from rlinf.config.port_range import parse_port_range
from rlinf.scheduler.cluster.interfaces import comm_addresses
from rlinf.scheduler.collective import group_store
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.net import sockets
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Listener, answers
from rlinf.scheduler.worker.ports import free_port
from tests.unit_tests.scheduler.small_run import SmallRun
from tests.unit_tests.scheduler.waits import PROMPTLY


def listener(ports: tuple[int, int]) -> Listener:
    nobody = (lambda *_: None,) * 2
    return Listener(IOLoop(), ("tcp", "127.0.0.1", 0), b"s", *nobody, ports=ports)


def free_range(size: int) -> tuple[int, int]:
    first = free_port(60_000)
    return first, first + size - 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_that_listens_does_so_within_the_range(tmp_path, host):
    low, high = free_range(50)
    run = SmallRun(tmp_path, num_nodes=2, host=host, ports=(low, high))
    a, b = run.join("a:0"), run.join("b:0", node_rank=1)
    used = [*run.server.addresses, *a.endpoint.addresses, *b.endpoint.addresses]
    tcp = [address for address in used if address[0] == "tcp"]
    assert len(tcp) == 3 and all(low <= port <= high and h == host for _, h, port in tcp)
    a.mailbox.send("b:0", "hello").wait(PROMPTLY)
    assert b.mailbox.recv("a:0").wait(PROMPTLY) == "hello"
    assert low <= free_port(None, (low, high)) <= high
    with group_store.listen(host, (low, high)) as store:
        assert low <= store.getsockname()[1] <= high
    run.close()


def test_a_range_that_is_used_up_is_named():
    ports = free_range(1)
    taken = listener(ports)
    with pytest.raises(OSError, match=rf"cluster.port_range {ports[0]}-{ports[1]} is free at 127"):
        listener(ports)
    with pytest.raises(ValueError, match=f"no port of {ports[0]} to {ports[1]} is free"):
        free_port(None, ports)
    taken.close()


@pytest.mark.parametrize(
    ("given", "wrong"),
    [("30000", "not a range"), ("3-30000", "1024-65535"), ("40000-39000", "lower end"),
     ("30000-70000", "1024-65535"), ("30000-30003", "4 ports")],
)  # fmt: skip
def test_what_is_no_range(given, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_port_range(given)


def test_a_range():
    assert parse_port_range(" 30000 - 30999") == range(30000, 31000)


def test_what_is_blocked_is_named(monkeypatch):
    def blocked(*_):
        raise TimeoutError("timed out")

    monkeypatch.setattr(sockets, "interruptible", blocked)
    with pytest.raises(TimeoutError, match="10.1.2.3 port 31000 within 2 s; a firewall"):
        sockets._greeted(("tcp", "10.1.2.3", 31000), b"s", {}, 2.0, None)


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1 port {port}"):
        sockets._greeted(("tcp", "127.0.0.1", port), b"s", {}, 2.0, None)
    assert not answers(("tcp", "127.0.0.1", port), b"s", "me")


def address(family: int, text: str) -> SimpleNamespace:
    return SimpleNamespace(family=family, address=text)


def test_addresses_of_the_interfaces_that_are_named(monkeypatch):
    found = {
        "eth0": [address(socket.AF_INET6, "fd00::1"), address(socket.AF_INET, "10.0.0.1")],
        "ib0": [address(socket.AF_INET6, "fe80::1%ib0"), address(socket.AF_INET6, "fd01::1")],
        "down0": [],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setenv("RLINF_COMM_NET_DEVICES", "ib0, eth0")
    assert comm_addresses() == ["fd01::1", "10.0.0.1"]
    for name, wrong in (("eth7", "is no interface"), ("down0", "has no address")):
        monkeypatch.setenv("RLINF_COMM_NET_DEVICES", name)
        with pytest.raises(ClusterError, match=f"{name}.*{wrong}.*there are: down0, eth0, ib0"):
            comm_addresses()
    monkeypatch.delenv("RLINF_COMM_NET_DEVICES")
    assert comm_addresses() == []
