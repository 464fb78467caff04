"""Errors of channels."""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING

from rlinf.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from rlinf.scheduler.events import Raised


class ChannelError(SchedulerError):
    """Base class of what channels report."""


class ChannelClosed(ChannelError):
    """The channel is closed, and nothing is left in it for the reader."""


class ChannelFull(ChannelError, asyncio.QueueFull, queue.Full):
    """There is no room in the channel."""


class ChannelEmpty(ChannelError, asyncio.QueueEmpty, queue.Empty):
    """There is no item in the channel."""


class KeeperFailed(ChannelError):
    """The keeper of the channel made a mistake while it served a request.

    Attributes:
        raised: what happened to it; the failure card of a run that ends so tells of it.
    """

    raised: Raised


class KeeperLost(ChannelError):
    """The process that kept the channel has ended."""

    may_follow_from_lost_peer = True


class ItemLost(ChannelError):
    """An item that was in the channel is gone, because a process that held it has died."""

    may_follow_from_lost_peer = True
