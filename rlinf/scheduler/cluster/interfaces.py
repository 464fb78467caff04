"""The addresses at which a node exchanges data: those of the interfaces that its user has named."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.errors import ClusterError

_KINDS = (socket.AF_INET, socket.AF_INET6)


def comm_addresses() -> list[str]:
    """Return the addresses of the interfaces in RLINF_COMM_NET_DEVICES; none if it is not set.

    Of each interface the IPv4 address is taken, or, if it has none, the IPv6 address.

    Raises:
        ClusterError: there is no such interface here, or it has no address.
    """
    variable = ClusterEnvVar.COMM_NET_DEVICES
    names = [name.strip() for name in (variable.get() or "").split(",") if name.strip()]
    if not names:
        return []
    import psutil

    known = {
        name: [(a.family, a.address) for a in addresses]
        for name, addresses in psutil.net_if_addrs().items()
    }
    return [_address(name, known.get(name, []), sorted(known)) for name in names]


def _address(name: str, addresses: Sequence[tuple[int, str]], known: list[str]) -> str:
    for kind in _KINDS:
        for family, address in addresses:
            # One that is valid on its own link only leads to no other host.
            if family == kind and not address.startswith("fe80"):
                return address
    what = "has no address" if name in known else "is no interface of this machine"
    raise ClusterError(
        f"{ClusterEnvVar.COMM_NET_DEVICES.full_name} names {name!r}, which {what} "
        f"({socket.gethostname()}); there are: {', '.join(known)}"
    )
