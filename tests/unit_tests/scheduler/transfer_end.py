"""A process that ends when a transfer by link has begun, and before it has taken anything."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator

from rlinf.scheduler.collective.device_group import DeviceGroup


def end_in_transfer(number: int) -> None:
    """Let this process end in a transfer, counted from 0, when all members have come to it.

    The others cannot be done with it then, however slow or fast this process is: gloo sends nothing
    that nobody has asked for.
    """
    meeting, numbers = DeviceGroup._meeting, itertools.count()

    @contextlib.contextmanager
    def meeting_or_end(group: DeviceGroup, transfer: int) -> Iterator[None]:
        with meeting(group, transfer):
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            yield

    DeviceGroup._meeting = meeting_or_end
