"""The speed of a link, in one direction, by the kernel's token bucket."""

from __future__ import annotations

from typing import Any

_HANDLE, _ROOT = 0x10000, 0xFFFFFFFF
_QUEUE_MICROSECONDS = 50_000
_SMALLEST_BURST = 1 << 18
"""Bytes: the largest packet that the kernel hands to a link must fit."""


def shape(route: Any, index: int, bits_per_second: float | None) -> None:
    """Slow a link down, or let it go as fast as it can.

    Args:
        route: an `IPRoute` of the namespace that the link is in.
        index: index of the link.
        bits_per_second: how fast it is from now on; None is without a limit.
    """
    shaped = any(
        qdisc.get_attr("TCA_KIND") == "tbf" for qdisc in route.get_qdiscs(index) if qdisc["handle"]
    )
    if shaped:
        route.tc("del", index=index, handle=_HANDLE, parent=_ROOT)
    if bits_per_second is not None:
        rate = int(bits_per_second / 8)
        burst = max(_SMALLEST_BURST, rate // 250)
        route.tc("add", "tbf", index, _HANDLE, rate=rate, burst=burst, latency=_QUEUE_MICROSECONDS)
