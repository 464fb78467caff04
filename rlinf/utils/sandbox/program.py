"""The inside of a sandbox: confines itself, then runs a program; never returns."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from rlinf.utils.sandbox.confine import Enforced, confine, drop_capabilities, limit_resources

NOBODY = 65534
VALUE_FD = 3

EXIT_SETUP, EXIT_MEMORY = 120, 121
"""Exit codes: the sandbox could not be set up; the program asked for more memory than it may."""


def run(code: str, question: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Run a program in this process and ends the process.

    Standard streams are in place already; values go to file descriptor 3.

    Args:
        code: The program.
        question: `call` and `check` of `Sandbox.run`; `probe` only says what is enforced.
        settings: What the launcher was told, and what it has found out.
    """
    exit_code = 1
    try:
        enforced = _confine(settings)
        if question.get("probe"):
            _answer({"by": enforced.by, "problems": enforced.problems})
            os._exit(0)
    except BaseException as error:
        _answer({"setup": f"{type(error).__name__}: {error}"})
        os._exit(EXIT_SETUP)
    try:
        exit_code = _execute(code, question)
    except MemoryError:
        exit_code = EXIT_MEMORY
    finally:
        os._exit(exit_code)


def _confine(settings: Mapping[str, Any]) -> Enforced:
    layers = settings["layers"]
    megabyte = 1 << 20
    limits = {
        "AS": settings["memory_mb"] * megabyte,
        "CPU": int(settings["seconds"]) + 2,
        "FSIZE": 0,
        "CORE": 0,
        "NOFILE": 64,
    }
    if settings["own_users"]:
        # Counts per user: only here are those of others not among them.
        limits["NPROC"] = 64
    enforced = Enforced()
    if settings["drop_user"]:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        enforced.add("user", ("signals",))
    drop_capabilities()
    limit_resources(limits)
    own = confine(layers)
    for guarantee, names in own.by.items():
        for name in names:
            enforced.add(name, (guarantee,))
    enforced.problems.update(own.problems)
    return enforced


def _execute(code: str, question: Mapping[str, Any]) -> int:
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True
    )
    sys.argv = ["program.py"]
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(code, "program.py", "exec"), names)
        if question.get("call") is not None:
            _answer({"value": _function(names, question["call"])(*question["arguments"])})
        if question.get("check") is not None:
            exec(compile(question["check"], "check.py", "exec"), names)
            _answer({"value": True})
        _finish()
        return 0
    except SystemExit as leaving:
        _finish()
        return _exit_code(leaving.code)
    except MemoryError:
        raise
    except BaseException:
        import traceback

        traceback.print_exc()
        _flush()
        return 1


def _function(names: Mapping[str, Any], name: str) -> Any:
    if "Solution" in names and hasattr(names["Solution"], name):
        return getattr(names["Solution"](), name)
    return names[name]


def _finish() -> None:
    """What the interpreter does at its end: waits for threads, and writes what is in buffers."""
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit = sys.modules.get("atexit")
    if atexit is not None:
        atexit._run_exitfuncs()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    _flush()
    return 1


def _answer(value: Mapping[str, Any]) -> None:
    os.write(VALUE_FD, json.dumps(value).encode())
