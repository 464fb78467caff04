"""A worker's log: one line format, on standard output and in the worker's own file."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

FORMAT = "[%(levelname)s %(asctime)s {who}][%(filename)s:%(lineno)d] %(message)s"


def worker_logger(name: str, who: str, log_file: str | None) -> logging.Logger:
    """Logger that writes lines such as `[INFO 12:00:00 Actor-Rank-0][worker.py:12] text`."""
    logger = logging.getLogger(f"rlinf.worker.{name}")
    logger.handlers.clear()
    logger.propagate = False
    logger.setLevel(os.environ.get("RLINF_LOG_LEVEL", "INFO").upper())
    formatter = logging.Formatter(FORMAT.format(who=who), datefmt="%H:%M:%S")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if log_file:
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(log_file))
    for handler in handlers:
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    return logger
