"""What all benchmarks share: live contestants, samples taken in turn, and one table of medians."""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(__file__).resolve().parent / "contestants"
IDLE_LIMIT = 0.10
"""Share of the processors that may be busy before a run, for its numbers to count."""


# -- the machine -----------------------------------------------------------------------------------


def describe_machine() -> str:
    """Processor, memory and versions, in one line."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("ray", "torch"))
    return (
        f"{os.cpu_count()} x {names[0] if names else platform.machine()}, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {versions}"
    )


def busy_share(seconds: float = 2.0) -> float:
    """Share of all processors that anybody used during the next `seconds`."""
    return psutil.cpu_percent(interval=seconds) / 100


# -- contestants -----------------------------------------------------------------------------------


class ContestantFailed(RuntimeError):
    """A contestant could not do what it was asked."""


@dataclass(frozen=True)
class Entry:
    """A contestant that can be started.

    Attributes:
        name: heading of its column.
        program: its file in `contestants/`.
        python: interpreter that runs it.
        env: variables that it needs besides the common ones.
        options: further arguments of its commands, by command.
    """

    name: str
    program: str
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def ours(program: str, **options: dict[str, Any]) -> Entry:
    """This repository as a contestant."""
    return Entry("ours", program, env={"PYTHONPATH": str(ROOT)}, options=options)


def public_package(program: str, python: str, **options: dict[str, Any]) -> Entry:
    """Return the public package as a contestant.

    Raises:
        ValueError: `python` is not the interpreter of an environment that has it.
    """
    look = (
        "import importlib.metadata as m, importlib.util as u;"
        "print(m.version('rlinf'), u.find_spec('rlinf').origin)"
    )
    found = subprocess.run(
        [python, "-I", "-c", look], capture_output=True, text=True, cwd=tempfile.gettempdir()
    )
    if found.returncode:
        raise ValueError(
            f"--peer {python}: this interpreter has no rlinf package. Make an environment for it:\n"
            "  python3.11 -m venv peer-env\n"
            "  peer-env/bin/pip install -c constraints.txt torch 'ray[default]' omegaconf\n"
            "  peer-env/bin/pip install --no-deps rlinf==0.3.0"
        )
    version, place = found.stdout.split(maxsplit=1)
    if Path(place).is_relative_to(ROOT):
        raise ValueError(f"--peer {python}: its rlinf is this repository, not the public package")
    # It would join any Ray that runs on this machine, the other contestants' among them.
    env = {"RAY_ADDRESS": "local"}
    return Entry(f"rlinf {version}", program, python=python, env=env, options=options)


class Contestant:
    """A contestant that runs: a process that answers commands, one at a time."""

    def __init__(self, entry: Entry, folder: Path):
        """Start the program, with `folder` for its output."""
        self.entry = entry
        self.name = entry.name
        self._log = folder / f"{entry.name.replace(' ', '_')}-{time.monotonic_ns()}.log"
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RAY_", "RLINF_", "PYTHON", "OMP_", "MKL_"))
        }
        # One thread each: on few cores, pools of contestants that wait would disturb the others.
        common = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [entry.python, "-u", str(PROGRAMS / entry.program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=kept | common | entry.env,
                # Not the repository: its packages must not be found by accident.
                cwd=folder,
            )
        self._stuck = False
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    @property
    def pid(self) -> int:
        """Process of the contestant's driver."""
        return self._process.pid

    def ask(self, do: str, timeout: float = 180.0, **arguments: Any) -> Any:
        """Let the contestant run a command and return its answer.

        Raises:
            ContestantFailed: it raised, ended, or did not answer in time.
        """
        arguments = arguments | self.entry.options.get(do, {})
        what = f"{self.name}: {do}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do} | arguments), file=self._process.stdin, flush=True)
            line = self._answers.get(timeout=timeout)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            self._stuck = True
            raise ContestantFailed(f"{what} took more than {timeout:g} s") from None
        if not line:
            raise ContestantFailed(f"{what} ended the process\n{self._last_lines()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantFailed(f"{what} failed\n{answer['error'].rstrip()}")
        return answer["value"]

    def _last_lines(self, count: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])

    def close(self, timeout: float = 30.0) -> None:
        """End the contestant and all that it started."""
        started = descendants(self.pid)
        assert self._process.stdin is not None
        with suppress(ContestantFailed, BrokenPipeError):
            if not self._stuck and self._process.poll() is None:
                self.ask("stop", timeout=timeout)
            self._process.stdin.close()
        try:
            self._process.wait(0 if self._stuck else timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in started:
            # A number that another process has by now is not touched: psutil compares start times.
            if process.is_running():
                with _gone_is_fine():
                    process.kill()
        psutil.wait_procs(started, timeout=10)

    def memory(self, workers: Sequence[int]) -> dict[str, float]:
        """Resident memory in MiB of the driver, the `workers` and all other processes.

        Pages that several processes share count in parts (PSS), so that sums are right.
        """
        shares = {"driver": 0.0, "workers": 0.0, "others": 0.0}
        with _gone_is_fine():
            shares["driver"] = resident(self.pid)
        for process in descendants(self.pid):
            with _gone_is_fine():
                kind = "workers" if process.pid in workers else "others"
                shares[kind] += resident(process.pid)
        return {kind: value / 2**20 for kind, value in shares.items()}


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """A process may end while one looks at it."""
    try:
        yield
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        pass


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes that a process has started, directly or not."""
    with _gone_is_fine():
        return psutil.Process(pid).children(recursive=True)
    return []


def resident(pid: int) -> int:
    """Resident memory of a process in bytes: its proportional share, or all if that is not told."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        return psutil.Process(pid).memory_info().rss
    return next(
        int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")
    )


@contextmanager
def live(entries: Iterable[Entry], folder: Path) -> Iterator[list[Contestant]]:
    """Contestants that run side by side until the block ends."""
    running: list[Contestant] = []
    try:
        for entry in entries:
            running.append(Contestant(entry, folder))
        yield running
    finally:
        for contestant in running:
            contestant.close()


# -- samples ---------------------------------------------------------------------------------------


@dataclass
class Row:
    """One measure.

    Attributes:
        label: what is measured.
        unit: its unit.
        digits: decimals to print.
        samples: values by contestant. Samples with the same index were taken in the same round.
        aims: what our number should be.
    """

    label: str
    unit: str
    digits: int
    samples: dict[str, list[float]] = field(default_factory=dict)
    aims: list[Aim] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        """Take a sample of a contestant."""
        self.samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float | None:
        """Median of a contestant, None without samples."""
        values = self.samples.get(name)
        return statistics.median(values) if values else None

    def ratio(self, name: str, other: str) -> float | None:
        """Median over the rounds of how many times `other`'s value `name`'s is."""
        pairs = list(zip(self.samples.get(name, []), self.samples.get(other, []), strict=False))
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def cell(self, name: str) -> str:
        """Median and quartiles as text."""
        values = self.samples.get(name)
        if not values:
            return "-"
        show = f"{{:,.{self.digits}f}}".format
        if len(values) < 3:
            return show(statistics.median(values))
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return f"{show(middle)} [{show(low)}–{show(high)}]"


@dataclass(frozen=True)
class Aim:
    """What a number should be: at most or at least so many times another contestant's, or a value.

    Attributes:
        limit: the factor, or the value if `other` is None.
        other: name of the other contestant.
        at_least: whether the limit is a lower one.
    """

    limit: float
    other: str | None = None
    at_least: bool = False

    def verdict(self, row: Row, name: str) -> str:
        """Return the aim and whether contestant `name` meets it, as text."""
        value = row.median(name) if self.other is None else row.ratio(name, self.other)
        sign = "≥" if self.at_least else "≤"
        text = f"{sign} {self.limit:g}" + (f" x {self.other}" if self.other else f" {row.unit}")
        if value is None:
            return f"{text}: -"
        met = value >= self.limit if self.at_least else value <= self.limit
        shown = f"{value:.2f} x" if self.other else f"{value:.{row.digits}f}"
        return f"{text}: {shown} {'met' if met else '**missed**'}"


class Board:
    """The rows of a benchmark, and who failed at what.

    Attributes:
        failures: messages, in the order in which they came.
    """

    def __init__(self, names: list[str], ours: str = "ours"):
        self.names = names
        self.failures: list[str] = []
        self._ours = ours
        self._rows: dict[str, Row] = {}

    def row(self, label: str, unit: str, digits: int = 0, aims: Sequence[Aim] = ()) -> Row:
        """Return the row of a measure; a new one at the first call."""
        if label not in self._rows:
            aims = [a for a in aims if a.other is None or a.other in self.names]
            self._rows[label] = Row(label, unit, digits, aims=aims)
        return self._rows[label]

    @contextmanager
    def failing(self) -> Iterator[None]:
        """A contestant's failure is noted, and the others go on."""
        try:
            yield
        except ContestantFailed as failure:
            self.failures.append(str(failure))
            print(f"  {failure}", file=sys.stderr, flush=True)

    def render(self, ratios: Sequence[tuple[str, str]] = ()) -> str:
        """Return the table in Markdown: medians with quartiles.

        Args:
            ratios: pairs (a, b) that get a column with the values of a over those of b.
        """
        ratios = [pair for pair in ratios if set(pair) <= set(self.names)]
        head = ["measure", *self.names, *(f"{a} / {b}" for a, b in ratios), "aim of ours"]
        lines = [head, ["---", *["---:"] * (len(head) - 2), "---"]]
        for row in self._rows.values():
            cells = [f"{row.label} ({row.unit})", *map(row.cell, self.names)]
            for a, b in ratios:
                ratio = row.ratio(a, b)
                cells.append("-" if ratio is None else f"{ratio:.2f}")
            cells.append("; ".join(aim.verdict(row, self._ours) for aim in row.aims))
            lines.append(cells)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def samples(self) -> dict[str, Any]:
        """Return all samples, for a file."""
        return {r.label: {"unit": r.unit, "samples": r.samples} for r in self._rows.values()}


def rotated(items: Sequence[Any], turn: int) -> list[Any]:
    """Return the items with another one first each turn, so that order favours nobody."""
    turn %= max(1, len(items))
    return [*items[turn:], *items[:turn]]


# -- running ---------------------------------------------------------------------------------------


def arguments(doc: str) -> argparse.ArgumentParser:
    """Return the options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each measure")
    parser.add_argument("--quick", action="store_true", help="few samples: does everything work?")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that has the public package")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contestants to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all samples")
    return parser


def chosen(entries: Sequence[Entry], only: Sequence[str] | None) -> list[Entry]:
    """Return the entries that `--only` names; all without it.

    Raises:
        ValueError: there is no such contestant.
    """
    unknown = set(only or ()) - {entry.name for entry in entries}
    if unknown:
        raise ValueError(
            f"--only {', '.join(sorted(unknown))}: the contestants are "
            f"{', '.join(repr(entry.name) for entry in entries)}"
        )
    return [entry for entry in entries if only is None or entry.name in only]


def run(
    board: Board,
    measure: Callable[[Path], None],
    ratios: Sequence[tuple[str, str]],
    notes: Sequence[str],
    file: Path | None,
) -> int:
    """Measure, prints the table with all that a reader must know, and return the exit code."""
    # Contestants are ended on this way out, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    busy = busy_share()
    begin = time.monotonic()
    if busy > IDLE_LIMIT:
        print(f"the machine is not idle: {busy:.0%} busy before the start", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rlinf-benchmark-") as folder:
        measure(Path(folder))
    after = busy_share()
    idle = max(busy, after) <= IDLE_LIMIT
    state = "idle" if idle else "**not idle: these numbers do not count**"
    print(
        f"{describe_machine()}. Others used {busy:.0%} of it before and {after:.0%} after: {state}."
    )
    print(f"Medians [quartiles]; {time.strftime('%Y-%m-%d')}, {time.monotonic() - begin:.0f} s.\n")
    print(board.render(ratios))
    for note in notes:
        print(f"\n{note}")
    for failure in board.failures:
        print(f"\nFAILED {failure}")
    if file is not None:
        facts = {"machine": describe_machine(), "busy": [busy, after], "rows": board.samples()}
        file.write_text(json.dumps(facts, indent=1))
    return 1 if board.failures else 0
