"""The logger of this process: a worker's own in a worker, `rlinf` elsewhere."""

from __future__ import annotations

import logging
import os
import sys

FORMAT = "[%(levelname)s %(asctime)s {who}][%(filename)s:%(lineno)d] %(message)s"

_current: logging.Logger | None = None


def get_logger() -> logging.Logger:
    """Return the logger of this process.

    In a worker it is the one behind `Worker.log_info`: lines name the worker, and go to its file,
    too. Elsewhere lines go to standard output, from the level of `RLINF_LOG_LEVEL` on.
    """
    return _driver_logger() if _current is None else _current


def current_logger() -> logging.Logger | None:
    """Return the logger that `set_logger` has set."""
    return _current


def set_logger(logger: logging.Logger | None) -> None:
    """Make a logger that of this process; None makes it the default again."""
    global _current
    _current = logger


def log_level() -> str:
    """Return the least level that is shown: `RLINF_LOG_LEVEL`, by default INFO.

    Raises:
        ValueError: there is no such level.
    """
    level = os.environ.get("RLINF_LOG_LEVEL", "INFO").upper()
    allowed = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    if level not in allowed:
        raise ValueError(f"RLINF_LOG_LEVEL={level!r}; allowed: {', '.join(allowed)}")
    return level


def _driver_logger() -> logging.Logger:
    logger = logging.getLogger("rlinf")
    logger.setLevel(log_level())
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter(FORMAT.format(who="driver"), datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger
