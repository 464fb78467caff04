"""Flow policy on state vectors, or on images and state."""

from __future__ import annotations

from typing import Any

__all__ = ["ImageFlowPolicy", "StateFlowPolicy"]


def __getattr__(name: str) -> Any:
    """Import the policy on first use: its schema, beside it, must load without torch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from rlinf.models.embodiment.flow_policy import flow_policy

    return getattr(flow_policy, name)
