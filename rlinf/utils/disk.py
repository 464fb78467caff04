"""Files beside a run whose loss must not end it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_told: set[str] = set()


@contextmanager
def tolerate_disk_errors(what: str) -> Iterator[None]:
    """Let a disk that is full or closed cost what the block writes; warn once for each thing.

    Args:
        what: what is written, for the warning.
    """
    try:
        yield
    except OSError as error:
        if what not in _told:
            _told.add(what)
            print(
                f"warning: {what} cannot be written ({error}); the run goes on without",
                file=sys.stderr,
                flush=True,
            )
