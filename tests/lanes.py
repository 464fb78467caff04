"""Runs the suite in lanes beside each other; what fails there gets one more try on its own.

Lanes share the cores, so a test may meet a limit that it keeps alone. Such a test is run once more
when nothing else runs. One that fails again fails the suite; one that passes is named at the end,
because it depends on the speed of the machine and wants mending. A test that hangs or crashes
costs itself alone: another process goes on with those that are left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.record import Record, write

LANES = {
    "unit tests": (
        "tests/unit_tests",
        "tests/security",
        "--ignore=tests/unit_tests/scheduler",
        "--ignore=tests/unit_tests/workers",
    ),
    "whole jobs": (
        "tests/e2e_tests/embodied",
        "tests/e2e_tests/reasoning",
        "tests/e2e_tests/scheduler",
    ),
    "scheduler and workers": ("tests/unit_tests/scheduler", "tests/unit_tests/workers"),
    "hosts": ("tests/e2e_tests/hosts",),
    "a newcomer's walk": ("tests/e2e_tests/walk",),
    "faults": ("tests/e2e_tests/faults",),
    "faults of agents": ("tests/e2e_tests/agent_faults",),
}
"""What is run, by name: the longest first, so that none is left alone at the end."""
AT_ONCE = 3
"""Lanes that run beside each other; the next one begins when one of them has ended."""
SUITE_SECONDS = 75 * 60
"""After which what still runs is ended."""
GRACE_SECONDS = 20
LOST_TESTS = 5
"""Tests of a lane that may hang or crash, each in a process of its own, before it is given up."""
SLOWEST = 20
"""Tests whose seconds are printed."""
STOPS_EARLY = ("-x", "--exitfirst", "--maxfail")
"""Arguments with which a failure leaves tests undone, so that it gets no second try."""
NOTHING_FAILED = (0, 5)
SOME_FAILED = 1
NOT_DONE = 124


@dataclass
class Lane:
    """One run of pytest.

    Args:
        name: what people call it.
        paths: what it tests.
        folder: where its log and its cache are.
    """

    name: str
    paths: tuple[str, ...]
    folder: Path

    def __post_init__(self) -> None:
        self.folder = self.folder / self.name.replace(" ", "_")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.log = self.folder / "log"
        self.seconds = 0.0
        self._process: subprocess.Popen | None = None
        self._given_up = False

    @property
    def record(self) -> Record:
        """What has become of its tests so far."""
        return Record.read(self.folder / "record")

    def run(self, *args: str, deadline: float, shown: bool = False) -> int:
        """Runs its tests; returns 0 if all are done, whatever has become of them.

        Args:
            args: passed on to pytest.
            deadline: by the monotonic clock, when it is ended.
            shown: whether the output is shown, or goes to its log.
        """
        begin = time.monotonic()
        try:
            for _ in range(LOST_TESTS + 1):
                code = self._run_once(*args, deadline=deadline, shown=shown)
                lost = self.record.unfinished
                if lost is None or code == NOT_DONE or self._given_up:
                    known = code == SOME_FAILED and self.record.failures
                    return 0 if code in NOTHING_FAILED or known else code
                with (self.folder / "record").open("a") as record:
                    write(record, "failed", lost)
                print(f"{self.name}: ended with {code} in {lost}", flush=True)
            return code or NOT_DONE
        finally:
            self.seconds += time.monotonic() - begin

    def _run_once(self, *args: str, deadline: float, shown: bool) -> int:
        command = [sys.executable, "-m", "pytest", *self.paths, *args]
        command += ["-p", "tests.record", "--record", str(self.folder)]
        command += ["-o", f"cache_dir={self.folder / 'cache'}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if shown else log,
                stderr=None if shown else subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return NOT_DONE
        finally:
            self._end_process()
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Ends it, if it still runs."""
        self._given_up = True
        self._end_process()

    def _end_process(self) -> None:
        """End it, and what it has left behind."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run(lanes: list[Lane], at_once: int, args: list[str]) -> int:
    """Runs all lanes, then what failed in them; returns the suite's exit code."""
    deadline = time.monotonic() + SUITE_SECONDS
    codes: dict[str, int] = {}
    leaving = threading.Event()

    def follow(lane: Lane) -> None:
        if not leaving.is_set():
            codes[lane.name] = lane.run(*args, deadline=deadline, shown=lane is lanes[0])

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for followed in [pool.submit(follow, lane) for lane in lanes]:
                followed.result()
        except BaseException:
            leaving.set()
            for lane in lanes:
                lane.end()
            raise
    for lane in lanes[1:]:
        print(f"\n{lane.name}:", flush=True)
        print(lane.log.read_text(errors="replace"), flush=True)
    first = {lane.name: sorted(lane.record.failures) for lane in lanes}
    if not any(codes.values()) and not any(arg.startswith(STOPS_EARLY) for arg in args):
        for lane in filter(lambda lane: first[lane.name], lanes):
            print(f"\n{lane.name}: what failed, once more, with nothing beside it:", flush=True)
            again = (*args, "--only-failed", "-rA")
            codes[lane.name] = lane.run(*again, deadline=deadline, shown=True)
    print_summary(lanes)
    print_lost(lanes)
    for lane in lanes:
        print_verdict(lane, codes[lane.name], first[lane.name])
    if any(codes.values()):
        return max(codes.values())
    return SOME_FAILED if any(lane.record.failures for lane in lanes) else 0


def print_summary(lanes: list[Lane]) -> None:
    """Prints how long lanes and their slowest tests took."""
    print(f"\n{'seconds':>9}  {'tests':>6}  lane")
    for lane in lanes:
        print(f"{lane.seconds:9.0f}  {len(lane.record.seconds):6}  {lane.name}")
    seconds = {name: took for lane in lanes for name, took in lane.record.seconds.items()}
    print(f"\n{'seconds':>9}  test")
    for name in sorted(seconds, key=seconds.get, reverse=True)[:SLOWEST]:
        print(f"{seconds[name]:9.1f}  {name}")


def print_lost(lanes: list[Lane]) -> None:
    """Prints where tests were that have hung."""
    for lane in lanes:
        stacks = lane.folder / "stacks"
        if stacks.exists() and (text := stacks.read_text(errors="replace")):
            print(f"\n{lane.name}, the stacks of what hung:\n{text}")


def print_verdict(lane: Lane, code: int, failed_at_first: list[str]) -> None:
    """Prints what is wrong with a lane, if something is."""
    record = lane.record
    if code:
        print(f"{lane.name}: NOT DONE: ended with {code}", end="")
        print(f" in {record.unfinished}" if record.unfinished else "")
    for name in failed_at_first:
        if record.failures.get(name, 0) > 1:
            print(f"{lane.name}: FAILED TWICE: {name}")
        elif name in record.failures:
            print(f"{lane.name}: FAILED: {name}")
        else:
            print(f"{lane.name}: UNSTEADY: failed at first, then passed: {name}")


def main() -> None:
    """Runs the lanes of this repository; arguments are passed on to pytest."""
    root = Path(__file__).resolve().parents[1]
    os.chdir(root)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # What was started in the background ignores it, and so would the runs that tests stop by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # Likewise under nohup; who has a handler of its own passes the default on to its children.
        signal.signal(signal.SIGHUP, lambda *_: None)
    folder = root / ".pytest_cache" / "lanes"
    lanes = [Lane(*lane, folder) for lane in LANES.items()]
    sys.exit(run(lanes, AT_ONCE, sys.argv[1:]))


if __name__ == "__main__":
    main()
