"""API keys of loggers, which only the process that logs may see."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping

LOGGER_KEYS = ("WANDB_API_KEY", "SWANLAB_API_KEY")
"""Environment variables that let their owner write to an account."""


def without_logger_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that does not log."""
    return {name: value for name, value in environ.items() if name not in LOGGER_KEYS}


@contextlib.contextmanager
def hidden_logger_keys(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Take the keys out of the environment while processes are started that inherit it."""
    hidden = {name: environ.pop(name) for name in LOGGER_KEYS if name in environ}
    try:
        yield
    finally:
        environ.update(hidden)
