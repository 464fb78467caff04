"""Which components a checked configuration gives a place."""

from __future__ import annotations

from typing import Any


def is_placed(cfg: Any, component: str) -> bool:
    """Return whether `cluster.component_placement` names a component."""
    names = cfg.cluster.component_placement.keys()
    return any(component in (part.strip() for part in str(name).split(",")) for name in names)
