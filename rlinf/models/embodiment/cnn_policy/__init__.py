"""Policy on images and state."""

from __future__ import annotations

from typing import Any

__all__ = ["CNNPolicy", "build_cnn_policy"]


def __getattr__(name: str) -> Any:
    """Import the policy on first use: its schema, beside it, must load without torch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from rlinf.models.embodiment.cnn_policy import cnn_policy

    return getattr(cnn_policy, name)
