"""Models that say how likely it is that a task is solved."""

from __future__ import annotations

from typing import Any

__all__ = ["RewardModel"]


def __getattr__(name: str) -> Any:
    """Import the model on first use: its schema, beside it, must load without torch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from rlinf.models.embodiment.reward_model import networks

    return getattr(networks, name)
