"""Prints the address under which other nodes reach this one."""

from __future__ import annotations

import argparse
import fcntl
import ipaddress
import socket
import struct
import sys
from pathlib import Path

_ADDRESS_OF_INTERFACE = 0x8915
"""The ioctl SIOCGIFADDR."""
_OUTSIDE = ("8.8.8.8", 53)
"""Where the default route leads; nothing is sent there."""
_ADVICE = (
    "Set RLINF_NODE_IP to the address of this node, or RLINF_COMM_NET_DEVICES to its interface."
)


def address_of_interface(name: str) -> str | None:
    """Return the address of an interface, IPv4 if it has one; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", name.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(sock, _ADDRESS_OF_INTERFACE, request)[20:24])
        except OSError:
            return _ipv6_of_interface(name)


def _ipv6_of_interface(name: str) -> str | None:
    listed = Path("/proc/net/if_inet6")
    for line in listed.read_text().splitlines() if listed.exists() else ():
        digits, _, _, _, _, device = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if device == name and not address.is_link_local:
            return str(address)
    return None


def address_toward(host: str, port: int) -> str | None:
    """Return the address from which this node reaches another; None if it does not."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(target)
            return sock.getsockname()[0]
    except OSError:
        return None


def own_address() -> str | None:
    """Return the address of the default route, else the one that this node's name has."""
    found = address_toward(*_OUTSIDE)
    if found is not None:
        return found
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def node_ip(interfaces: str = "", toward: tuple[str, int] | None = None) -> str:
    """Return the address of this node.

    Args:
        interfaces: names with commas, as in RLINF_COMM_NET_DEVICES; the first one counts.
        toward: host and port that must be reached from the address.

    Raises:
        ValueError: it cannot be told; says why, and what to do.
    """
    first = interfaces.split(",")[0].strip()
    if first:
        known = [name for _, name in socket.if_nameindex()]
        found = address_of_interface(first) if first in known else None
        if found is None:
            what = "has no address" if first in known else "is no interface of this node"
            raise ValueError(
                f"RLINF_COMM_NET_DEVICES is {interfaces!r}, and {first!r} {what}. The interfaces "
                f"are {', '.join(known)}."
            )
        return found
    found = own_address() if toward is None else address_toward(*toward)
    if found is None:
        raise ValueError(f"no network of this node leads anywhere. {_ADVICE}")
    if toward is None and ipaddress.ip_address(found).is_loopback:
        raise ValueError(
            f"this node is only known as {found}, which others cannot reach. {_ADVICE}"
        )
    return found


def main() -> int:
    """Print the address, or what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interfaces", default="", help="names with commas; the first one counts")
    parser.add_argument("--toward", nargs=2, metavar=("HOST", "PORT"), help="what it must reach")
    args = parser.parse_args()
    toward = None if args.toward is None else (args.toward[0], int(args.toward[1]))
    try:
        print(node_ip(args.interfaces, toward))
    except ValueError as error:
        print(f"start_ray.sh: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
