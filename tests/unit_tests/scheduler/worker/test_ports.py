"""Ports that nobody else is given."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rlinf.scheduler.worker import ports
from rlinf.scheduler.worker.ports import free_port, port_choices


def test_a_free_port_is_none_that_the_kernel_gives_away():
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = [free_port() for _ in range(20)]
    assert all(not low <= port <= high for port in found)
    assert len(set(found)) > 1
    with socket.socket() as sock:
        sock.bind(("", found[-1]))


@pytest.mark.parametrize(
    "kernels, ours",
    [
        ("32768 60999", range(20000, 32768)),
        ("1024 60999", range(61000, 65536)),
        ("1024 65535", range(65536, 65536)),
        (None, range(20000, 32768)),
    ],
)
def test_ports_are_chosen_beside_those_of_the_kernel(monkeypatch, tmp_path, kernels, ours):
    file = tmp_path / "range"
    if kernels is not None:
        file.write_text(kernels + "\n")
    monkeypatch.setattr(ports, "_PORT_RANGE", file)
    assert port_choices() == ours
    assert 1024 <= free_port() <= 65535


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.socket() as sock:
        sock.bind(("", 0))
        taken = sock.getsockname()[1]
        monkeypatch.setattr(ports, "port_choices", lambda _: range(taken, taken + 1))
        assert free_port() != taken


def test_a_limit_is_kept_or_refused():
    assert all(free_port(20_100) <= 20_100 for _ in range(20))
    for limit in (19_999, 70_000):
        with pytest.raises(ValueError, match=f"max_port_num={limit} is not possible"):
            free_port(limit)
