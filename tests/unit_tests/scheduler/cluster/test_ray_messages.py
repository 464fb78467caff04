"""Tests that Ray's notices of dead workers are left out, and nothing else."""

from __future__ import annotations

from rlinf.scheduler.cluster import ray_messages

NOTICES = [
    "A worker died or was killed while executing a task by an unexpected system error. To ...",
    "*** SIGSEGV received at time=1794885522 on cpu 0 ***",
    "PC: @     0x7f3f5045a267  (unknown)  kill",
    "    @     0x7f3f5045a050  (unknown)  (unknown)",
    "[2026-11-17 03:18:42,026 E 12454 12454] logging.cc:474: *** SIGSEGV received at ...",
]
OTHERS = ["a worker died in my game", "[INFO 12:00:00 w-Rank-0][worker.py:3] hello", "", "  @ home"]


def test_notices_are_left_out_and_other_lines_are_printed():
    printed = []
    show = ray_messages._filtered(lambda data, ignore_prefix: printed.extend(data["lines"]))
    show({"lines": [*NOTICES, *OTHERS], "pid": "raylet"}, ignore_prefix=False)
    show({"lines": NOTICES, "pid": "raylet"}, ignore_prefix=False)
    assert printed == OTHERS


def test_this_version_of_ray_prints_by_the_function_that_is_wrapped():
    from ray._private import worker

    ray_messages.keep_out()
    ray_messages.keep_out()
    assert hasattr(worker.print_to_stdstream, "__wrapped__")
    assert not hasattr(worker.print_to_stdstream.__wrapped__, "__wrapped__")
