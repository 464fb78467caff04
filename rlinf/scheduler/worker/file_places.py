"""Where a worker puts and finds the files of the run; see `rlinf.scheduler.places`."""

from __future__ import annotations

from pathlib import Path

from rlinf.scheduler.current import current_runtime, has_runtime
from rlinf.scheduler.places import staged


def place_to_write(path: str | Path) -> Path:
    """Return where this process writes what belongs at a path of the run.

    Args:
        path: an absolute path in one of the run's folders, as the driver sees it.
    """
    return current_runtime().run.on_node(str(path)) if has_runtime() else Path(path)


def place_to_read(path: str | Path) -> Path:
    """Return where this process finds what the driver knows at a path and has delivered."""
    if has_runtime():
        delivered = staged(path, current_runtime().run.run_id)
        if delivered.exists():
            return delivered
    return Path(path)
