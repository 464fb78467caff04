"""How the main thread, while it reads a socket itself, is woken for another reason."""

from __future__ import annotations

import os
import select
import threading

_MOST_SECONDS = 3600.0


class Doorbell:
    """Waits for a socket or for `ring`.

    Only the main thread has one: a call that runs there can be interrupted by a signal, which
    `busy` keeps away from the messages of others that are handled meanwhile.

    Attributes:
        thread: id of the thread that it wakes.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)
        self._busy = False
        self._interruption: BaseException | None = None

    def ring(self) -> None:
        """Wakes the thread."""
        os.eventfd_write(self._event, 1)

    def wait(self, descriptor: int, seconds: float | None) -> bool:
        """Waits, at most an hour; True if the socket has something to read, or has ended."""
        self._poll.register(descriptor, select.POLLIN)
        try:
            ready = self._poll.poll(None if seconds is None else min(seconds, _MOST_SECONDS) * 1000)
        finally:
            self._poll.unregister(descriptor)
        readable = False
        for ready_descriptor, _ in ready:
            if ready_descriptor == descriptor:
                readable = True
            else:
                os.eventfd_read(self._event)
        return readable

    def __enter__(self) -> None:
        """Keeps `interrupt` out until the end of the block."""
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption

    def interrupt(self, error: BaseException) -> None:
        """Raises `error` in this thread, now or as soon as that is safe; for signal handlers."""
        if not self._busy:
            raise error
        self._interruption = error


_bell: Doorbell | None = None


def of_main_thread() -> Doorbell:
    """The main thread's bell; called by that thread."""
    global _bell
    if _bell is None:
        _bell = Doorbell()
    return _bell
