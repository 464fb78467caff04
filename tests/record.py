"""A pytest plugin that puts every test on record, and ends the process when one of them hangs.

A test that waits inside of native code cannot be interrupted from Python, and one that crashes
takes the process along. The record says which test that was, so that another run can go on with
those that are left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import pytest

EXTRA_SECONDS = 60
"""By how much a test outlives its own limit before its process is ended."""


@dataclass
class Record:
    """What is known of the tests of several runs.

    Args:
        seconds: of the tests that have ended, by name.
        failures: how often a test has failed, by name, unless it has passed since.
        unfinished: the test in which the last run ended, if it ended in one.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    unfinished: str | None = None

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read it back; a file that is not there is a record of nothing."""
        record = cls()
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            what, seconds, name = line.split("\t", 2)
            record.unfinished = name if what == "begin" else None
            if what != "begin":
                record.seconds[name] = float(seconds)
            if what == "failed":
                record.failures[name] = record.failures.get(name, 0) + 1
            elif what == "done":
                record.failures.pop(name, None)
        return record


def write(
    file: TextIO, what: Literal["begin", "done", "failed"], name: str, seconds: float = 0
) -> None:
    """Add to a record what has become of a test."""
    file.write(f"{what}\t{seconds:.3f}\t{name}\n")
    file.flush()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which a lane is run."""
    group = parser.getgroup("record")
    group.addoption("--record", type=Path, help="folder of the record")
    group.addoption("--only-failed", action="store_true", help="run what has failed once")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record, if a record is asked for."""
    if config.option.record is not None:
        config.pluginmanager.register(Recorder(config), "recorder")


class Recorder:
    """Writes the record, and leaves out the tests that are on it.

    Args:
        config: pytest's, which names the folder.
    """

    def __init__(self, config: pytest.Config):
        folder = config.option.record
        self._only_failed = config.option.only_failed
        self._path = folder / "record"
        self._before = Record.read(self._path)
        self._file = self._path.open("a")
        self._stacks = (folder / "stacks").open("a")
        self._failed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[pytest.Item]) -> None:
        """Leave out what is on record, or keep only what has failed once."""
        before = self._before
        if self._only_failed:
            kept = [item for item in items if before.failures.get(item.nodeid) == 1]
        else:
            kept = [item for item in items if item.nodeid not in before.seconds]
        left_out = set(items).difference(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = kept

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test, with its fixtures; end the process if it hangs."""
        write(self._file, "begin", item.nodeid)
        self._failed = False
        begin = time.monotonic()
        if limit := _limit(item):
            self._end_after(limit + EXTRA_SECONDS)
        try:
            result = yield
        finally:
            faulthandler.cancel_dump_traceback_later()
        end = "failed" if self._failed else "done"
        write(self._file, end, item.nodeid, time.monotonic() - begin)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of the test, of its fixtures or of their ends."""
        self._failed |= report.failed

    def pytest_unconfigure(self) -> None:
        """End the process if something keeps it from ending."""
        self._end_after(EXTRA_SECONDS)

    def _end_after(self, seconds: float) -> None:
        """End the process then, from a thread that Python cannot hold up, and write its stacks."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stacks)


def _limit(item: pytest.Item) -> float:
    """Return how many seconds a test may take, as pytest-timeout has it; 0 if that is not set."""
    marker = item.get_closest_marker("timeout")
    places = [] if marker is None else [*marker.args[:1], marker.kwargs.get("timeout")]
    places += [item.config.getoption("timeout", None), os.environ.get("PYTEST_TIMEOUT")]
    with contextlib.suppress(ValueError):
        places.append(item.config.getini("timeout"))
    return float(next((place for place in places if place not in (None, "")), 0))
