"""Component placements under their public path; the code is in ``rlinf.scheduler.placement``."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Look names up where they live; at first use, so that utils does not import upward."""
    try:
        return getattr(importlib.import_module("rlinf.scheduler.placement"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
