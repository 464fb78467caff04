"""The ports that a run may listen on: `30000-30999`."""

from __future__ import annotations

import re

LOWEST, HIGHEST = 1024, 65535
FEWEST = 16
"""A few processes on a node need that many."""


def parse_port_range(text: str) -> range:
    """Return the ports of a range in words, both ends included.

    Raises:
        ValueError: it is no range, or cannot be used; says what is allowed.
    """
    found = re.fullmatch(r"(\d+)\s*-\s*(\d+)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a range of ports such as 30000-30999")
    low, high = map(int, found.groups())
    if not LOWEST <= low <= high <= HIGHEST:
        raise ValueError(f"{text!r} must lie within {LOWEST}-{HIGHEST}, the lower end first")
    if high - low + 1 < FEWEST:
        raise ValueError(
            f"{text!r} has {high - low + 1} ports; each process of a node needs two, so give at "
            f"least {FEWEST}"
        )
    return range(low, high + 1)
