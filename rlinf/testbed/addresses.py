"""Names and addresses of the hosts of a bed; nothing outside of it can be reached by them."""

from __future__ import annotations

INTERFACE = "eth0"
"""What a host calls its link."""
PREFIX_V4, PREFIX_V6 = 16, 64


def host_name(index: int) -> str:
    """Return the name of a host."""
    return f"host{index}"


def host_ip(index: int) -> str:
    """Return the IPv4 address of a host."""
    return f"10.77.{(index + 1) // 250}.{(index + 1) % 250}"


def host_ipv6(index: int) -> str:
    """Return the IPv6 address of a host."""
    return f"fd77::{index + 1:x}"


def hosts_file(count: int) -> str:
    """Return what /etc/hosts says on every host."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{host_ip(index)} {host_name(index)}" for index in range(count)]
    return "".join(f"{line}\n" for line in lines)
