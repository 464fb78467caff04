"""The words of `rlinf runs`; apart from what they do, so that help and completion load little."""

from __future__ import annotations

COMMANDS = ("list", "compare", "rm", "tag")
"""Words behind `rlinf runs` that are not folders."""
DEFAULT = "logs"
"""Folder that is listed if none is named."""
UNKNOWN = "unknown"
STATUSES = ("running", "finished", "evaluated", "stopped", "failed", "killed", UNKNOWN)
"""What can have become of a run; `unknown` if it has no summary that can be read."""
