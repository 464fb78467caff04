"""Benchmarks that train: a cell is one training, and each appends one line of JSON to a file.

A *part* of such a benchmark has tasks and contestants; a *cell* is a part, a task, a contestant and
a seed. Cells may run beside each other if --cores gives each its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ContestantFailed, Entry, describe_machine, live

SEEDS = (1, 2, 3)
LONG = 7200.0
"""Seconds that no cell takes."""

Parts = Mapping[str, Mapping[str, Sequence[str]]]
"""By the name of a part its `tasks` and `contestants`."""
Line = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training."""

    part: str
    task: str
    contestant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.part}: {self.contestant}, {self.task}, seed {self.seed}"


def choose(
    parts: Parts,
    part: str | None = None,
    task: str | None = None,
    contestant: str | None = None,
    seed: int | None = None,
) -> list[Cell]:
    """Return the cells that options leave; seeds first, so that contestants take turns.

    Raises:
        ValueError: there is no such cell.
    """
    found = [
        Cell(name, each, who, number)
        for name, known in parts.items()
        for each in known["tasks"]
        for number in (SEEDS if seed is None else (seed,))
        for who in known["contestants"]
        if part in (None, name) and task in (None, each) and contestant in (None, who)
    ]
    if not found:
        raise ValueError(
            f"no cell has part {part}, task {task} and contestant {contestant}; there are "
            + "; ".join(f"{name}: {known}" for name, known in parts.items())
        )
    return found


def parser(about: str | None, parts: Parts) -> argparse.ArgumentParser:
    """Return the options that all such benchmarks have."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--part", choices=parts, help="only this part")
    options.add_argument("--task", help="only this task")
    options.add_argument("--contestant", help="only this contestant")
    options.add_argument("--seed", type=int, help="only this seed")
    options.add_argument("--cores", metavar="LIST", help="cores to run on, such as 0,1")
    options.add_argument(
        "--json", type=Path, metavar="FILE", help="where to append a line per cell"
    )
    options.add_argument("--read", type=Path, metavar="FILE", help="show these cells, run none")
    return options


def main(
    options: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    parts: Parts,
    entry_of: Callable[[Cell, argparse.Namespace, int], Entry],
    arguments_of: Callable[[Cell, argparse.Namespace], dict[str, Any]],
    tables: Callable[[list[Line]], str],
) -> int:
    """Run the cells that are asked for, or read them, and print their tables.

    Args:
        options: those of the benchmark.
        argv: arguments, None for those of the process.
        parts: what there is.
        entry_of: who trains in a cell, given the options and the number of cores.
        arguments_of: what its contestant is asked.
        tables: lines of cells in Markdown.

    Returns:
        0; 1 if a cell failed.
    """
    args = options.parse_args(argv)
    if args.read is not None:
        print(tables(read(args.read)))
        return 0
    try:
        chosen = choose(parts, args.part, args.task, args.contestant, args.seed)
    except ValueError as error:
        options.error(str(error))
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    cores = len(os.sched_getaffinity(0))
    # A training that is under way is ended on this way out, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    lines: list[Line] = []
    for cell in chosen:
        print(cell, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            with live([entry_of(cell, args, cores)], Path(folder)) as (contestant,):
                try:
                    found = contestant.ask("train", timeout=LONG, **arguments_of(cell, args))
                except ContestantFailed as failure:
                    print(f"FAILED {cell}: {failure}", file=sys.stderr, flush=True)
                    continue
        facts = {"date": time.strftime("%Y-%m-%d"), "cores": cores, "machine": describe_machine()}
        lines.append({**vars(cell), **facts, **found})
        if args.json is not None:
            with args.json.open("a") as out:
                out.write(json.dumps(lines[-1]) + "\n")
    print(tables(lines))
    return 0 if len(lines) == len(chosen) else 1


def read(file: Path) -> list[Line]:
    """Return the cells of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


# -- tables ----------------------------------------------------------------------------------------


def grouped(
    parts: Parts, lines: Iterable[Line], part: str
) -> Iterator[tuple[str, str, list[Line]]]:
    """Yield task, contestant and lines by seed of a part, in the order of `parts`."""
    own = sorted((line for line in lines if line["part"] == part), key=lambda line: line["seed"])
    for task in parts[part]["tasks"]:
        for who in parts[part]["contestants"]:
            found = [line for line in own if (line["task"], line["contestant"]) == (task, who)]
            if found:
                yield task, who, found


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
