"""Runs the suite in lanes beside each other; what fails there gets one more try on its own.

Lanes share the cores, so a test may meet a limit that it keeps alone. Such a test is run once more
when nothing else runs. One that fails again fails the suite; one that passes is named at the end,
because it depends on the speed of the machine and wants mending.
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
LANE_SECONDS = 60 * 60
"""After which a lane that has not ended is ended."""
GRACE_SECONDS = 20
NOTHING_FAILED = (0, 5)
SOME_FAILED = 1
HUNG = 124


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
        self._process: subprocess.Popen | None = None

    def start(self, *args: str, shown: bool = False) -> None:
        """Starts it; its output is shown, or goes to its log."""
        command = [sys.executable, "-m", "pytest", *self.paths, "--durations=20", *args]
        command += ["-o", f"cache_dir={self.folder / 'cache'}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if shown else log,
                stderr=None if shown else subprocess.STDOUT,
                start_new_session=True,
            )
        self._deadline = time.monotonic() + LANE_SECONDS

    def wait(self) -> int:
        """Its exit code, as a shell would see it."""
        try:
            code = self._process.wait(self._deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            self.end()
            print(f"{self.name}: not done after {LANE_SECONDS} s, ended", flush=True)
            return HUNG
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """Ends it and what it has started, if it still runs."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE_SECONDS)


def run(lanes: list[Lane], at_once: int, args: list[str]) -> int:
    """Runs all lanes, then what failed in them; returns the suite's exit code."""
    codes: dict[str, int] = {}
    leaving = threading.Event()

    def follow(lane: Lane) -> None:
        if not leaving.is_set():
            lane.start(*args, shown=lane is lanes[0])
            codes[lane.name] = lane.wait()

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for followed in [pool.submit(follow, lane) for lane in lanes]:
                followed.result()
        finally:
            leaving.set()
            for lane in lanes:
                lane.end()
    for lane in lanes[1:]:
        print(f"\n{lane.name}:", flush=True)
        print(lane.log.read_text(errors="replace"), flush=True)
    failed = [lane for lane in lanes if codes[lane.name] == SOME_FAILED]
    broken = {n: c for n, c in codes.items() if c not in (*NOTHING_FAILED, SOME_FAILED)}
    if broken:
        print(f"\nended before their tests were done: {broken}", flush=True)
        return max(broken.values())
    for lane in failed:
        print(f"\n{lane.name}: what failed, once more, with nothing beside it:", flush=True)
        try:
            lane.start(*args, "--last-failed", "--last-failed-no-failures=none", "-rA", shown=True)
            code = lane.wait()
        finally:
            lane.end()
        if code != 0:
            print(f"\n{lane.name}: failed twice", flush=True)
            return code
        print(f"{lane.name}: UNSTEADY: the tests above failed at first, then passed", flush=True)
    return 0


def main() -> None:
    """Runs the lanes of this repository; arguments are passed on to pytest."""
    root = Path(__file__).resolve().parents[1]
    os.chdir(root)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # What was started in the background ignores it, and so would the runs that tests stop by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = root / ".pytest_cache" / "lanes"
    lanes = [Lane(*lane, folder) for lane in LANES.items()]
    sys.exit(run(lanes, AT_ONCE, sys.argv[1:]))


if __name__ == "__main__":
    main()
