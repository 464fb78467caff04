"""The I/O thread of a process: it waits on all sockets and runs their callbacks."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.net import forks

READ = select.EPOLLIN | select.EPOLLRDHUP
"""What is watched of a socket that is only read."""


class IOLoop:
    """An epoll loop in a daemon thread."""

    def __init__(self, name: str = "rlinf-io"):
        self._epoll = select.epoll()
        self._members: dict[int, Any] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        forks.in_child(self)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run `function` in the I/O thread."""
        if threading.current_thread() is self._thread:
            function()
            return
        self._soon.append(function)
        self._wake_up()

    def defer(self, function: Callable[[], None]) -> None:
        """Run `function` in the I/O thread, later; safe in finalizers, whatever they interrupt."""
        self._soon.append(function)
        self._wake_up()

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` in the I/O thread, after a time."""
        due = (time.monotonic() + seconds, next(self._order), function)
        self.call_soon(lambda: heapq.heappush(self._later, due))

    def _wake_up(self) -> None:
        # A forked child has no I/O thread, and the number may be that of another file there.
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def close_in_child(self, reason: str) -> None:
        """Let go of everything in a forked child, where the I/O thread does not run."""
        self._stopping = True
        wake, self._wake = self._wake, -1
        os.close(wake)
        # Nothing is unregistered: what is watched is shared with the parent.
        self._epoll.close()
        for member in self._members.values():
            member.close_in_child(reason)
        self._members = {}

    def add(self, member: Any, events: int = READ) -> None:
        """Watch a member: an object with fileno, on_readable and on_writable."""
        self._members[member.fileno()] = member
        self._epoll.register(member.fileno(), events)

    def modify(self, member: Any, events: int) -> None:
        """Change what is watched; a member that has just been removed is left alone."""
        try:
            self._epoll.modify(member.fileno(), events)
        except (OSError, ValueError):
            pass

    def remove(self, member: Any) -> None:
        """Stop watching a member that is still open."""
        descriptor = member.fileno()
        if self._members.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def stop(self) -> None:
        """End the thread; sockets are left to their owners."""
        self._stopping = True
        self._wake_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        poll = self._epoll.poll
        writable, readable = select.EPOLLOUT, ~select.EPOLLOUT
        while not self._stopping:
            for descriptor, events in poll(self._run_due()):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                    while self._soon:
                        self._guard(self._soon.popleft())
                    continue
                member = self._members.get(descriptor)
                if member is None:
                    continue
                if events & writable:
                    self._guard(member.on_writable)
                if events & readable and self._members.get(descriptor) is member:
                    self._guard(member.on_readable)

    def _run_due(self) -> float | None:
        """Run what is due; return the seconds until the next is, None if there is none."""
        while self._later:
            left = self._later[0][0] - time.monotonic()
            if left > 0:
                return left
            self._guard(heapq.heappop(self._later)[2])
        return None

    @staticmethod
    def _guard(function: Callable[[], None]) -> None:
        """A bug in one callback must be seen, and must not end the service of all the others."""
        try:
            function()
        except Exception:
            traceback.print_exc()
