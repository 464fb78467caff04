"""When a message has left this process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Flushed:
    """Tells when the last byte of a message has been given to the kernel, or that it never will."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: str | None = None
        self._callback: Callable[[str | None], None] | None = None
        self._lock = threading.Lock()

    def set(self, error: str | None = None) -> None:
        """Mark the message as written, or as lost with `error`."""
        with self._lock:
            self._error = error
            self._done.set()
            callback = self._callback
        if callback is not None:
            callback(error)

    def is_set(self) -> bool:
        """Return whether the message has been written."""
        return self._done.is_set() and self._error is None

    def then(self, callback: Callable[[str | None], None]) -> None:
        """Call `callback(error)` when it is known; at once if it is."""
        with self._lock:
            if not self._done.is_set():
                self._callback = callback
                return
        callback(self._error)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; False if the deadline passed."""
        return self._done.wait(timeout)
