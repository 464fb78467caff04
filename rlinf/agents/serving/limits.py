"""How much clients may do: requests a second, connections, bytes, and seconds of silence."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

_PEERS = 4096


@dataclass(frozen=True)
class Limits:
    """Limits of an endpoint.

    Attributes:
        requests_per_second: Of one address, on average; 0 is no limit.
        in_flight: Requests under way, of all clients.
        connections: Open at a time, of all clients.
        body_bytes: Of a request.
        read_seconds: For the head of a request to arrive, and for its body.
        write_seconds: For a client to take what is written for it.
    """

    requests_per_second: float = 100.0
    in_flight: int = 256
    connections: int = 1024
    body_bytes: int = 4 << 20
    read_seconds: float = 20.0
    write_seconds: float = 60.0

    @property
    def burst(self) -> int:
        """Requests at once of one address: those of two seconds."""
        return max(1, int(2 * self.requests_per_second))


class RateLimit:
    """A bucket of requests per address, filled at a constant rate.

    Args:
        rate: Requests a second; 0 is no limit.
        burst: Size of a bucket.
        clock: Tells the time.
    """

    def __init__(self, rate: float, burst: int, clock: Any = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_of(self, peer: str) -> float:
        """Count a request; return 0, or the seconds after which it would be let through."""
        if not self._rate:
            return 0.0
        now = self._clock()
        left, then = self._buckets.pop(peer, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._rate)
        taken = left >= 1
        self._buckets[peer] = (left - 1 if taken else left, now)
        while len(self._buckets) > _PEERS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._rate
