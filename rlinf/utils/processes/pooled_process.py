"""The inside of a process of a `ProcessPool`: makes a function, then does jobs with it."""

from __future__ import annotations

import importlib
import json
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlinf.utils.processes.frames import read_frame, write_frame
from rlinf.utils.processes.lifetime import adopt_orphans, die_with_parent

if TYPE_CHECKING:
    from rlinf.utils.processes.pool import ProcessSpec


def main(read_fd: int, write_fd: int, parent: int) -> None:
    """Serve until the questions end."""
    die_with_parent(parent)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hello = read_frame(read_fd)
    if hello is None:
        return
    try:
        function, enforced = _make(pickle.loads(hello))
    except BaseException:
        _tell(write_fd, {"failed": traceback.format_exc()})
        return
    _tell(write_fd, {"enforced": enforced})
    while (frame := read_frame(read_fd)) is not None:
        told = _do(function, pickle.loads(frame))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _tell(write_fd, told)


def _make(spec: ProcessSpec) -> tuple[Callable[..., Any], str]:
    module, _, name = spec.target.partition(":")
    function = getattr(importlib.import_module(module), name)(*spec.args)
    from rlinf.utils.sandbox.confine import confine, limit_resources

    limits = {"CORE": 0}
    if spec.memory_mb:
        limits["AS"] = spec.memory_mb << 20
    if spec.confined:
        limits["FSIZE"] = 0
    limit_resources(limits)
    enforced = str(confine()) if spec.confined else "not confined"
    return function, "; ".join(filter(None, [enforced, getattr(function, "about", "")]))


def _do(function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    try:
        value = function(*args)
        json.dumps(value)
        return {"status": "ok", "value": value}
    except TimeoutError as error:
        return {"status": "timeout", "message": str(error)}
    except MemoryError:
        # What filled the memory may be a cache that stays full.
        return {"status": "crash", "message": "out of memory", "leaving": True}
    except BaseException as error:
        lines = traceback.format_exception_only(type(error), error)
        return {"status": "error", "message": "".join(lines).strip()[-2000:]}


def _tell(fd: int, value: dict[str, Any]) -> None:
    write_frame(fd, json.dumps(value).encode())
