"""Policy on state vectors."""

from __future__ import annotations

from typing import Any

__all__ = ["MLPPolicy", "build_mlp_policy"]


def __getattr__(name: str) -> Any:
    """Import the policy on first use: its schema, beside it, must load without torch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from rlinf.models.embodiment.mlp_policy import mlp_policy

    return getattr(mlp_policy, name)
