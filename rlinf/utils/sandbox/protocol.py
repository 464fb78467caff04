"""First bytes of what a sandbox and its launcher tell each other."""

from __future__ import annotations

START, MESSAGE, END, RESULT = b"s", b"m", b"e", b"r"
"""To the launcher: start a run, hand over a message, let the run end. From it, one answer to each:
a message of the program or, once that has ended, the result."""
