"""How long tests of the scheduler wait: for what is promised, and for what merely has to happen."""

from __future__ import annotations

import time
from collections.abc import Callable

PROMISED = 5.0
"""Seconds within which a failure is told, as promised."""

PROMPTLY = 20.0
"""Seconds for what takes a moment, on a machine that is busy with other things as well."""


def wait_until(predicate: Callable[[], object], seconds: float = PROMPTLY) -> None:
    """Waits until something is so.

    Args:
        predicate: tells whether it is.
        seconds: deadline.

    Raises:
        AssertionError: it was not so in time.
    """
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"not so within {seconds:g} s"
        time.sleep(0.02)
