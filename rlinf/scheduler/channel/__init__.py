"""Channels: named queues through which workers hand each other items."""

from __future__ import annotations

from typing import Any

__all__ = ["Channel"]


def __getattr__(name: str) -> Any:
    if name == "Channel":
        from rlinf.scheduler.channel.channel import Channel

        return Channel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
