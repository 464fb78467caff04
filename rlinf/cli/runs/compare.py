"""`rlinf runs compare`: configuration and results of runs, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from rlinf.cli.runs import words
from rlinf.cli.runs.comparison import Comparison, Group, compare_runs
from rlinf.cli.runs.entry import RunEntry
from rlinf.cli.runs.find import chosen_run
from rlinf.cli.runs.table import Column, set_table, terminal_width
from rlinf.utils.runs.folders import shown

_NOT_KNOWN = "–"
Row = tuple[str, list[str]]
"""A name, and a text for each group."""


def run(args: argparse.Namespace) -> int:
    """Print the comparison.

    Returns:
        0; 1 if what is named is not a run; 2 for fewer than two runs.
    """
    try:
        folders = {folder.resolve(): folder for folder in map(chosen_run, args.runs)}
        if len(folders) < 2:
            print(_too_few(args.runs), file=sys.stderr)
            return 2
        comparison = compare_runs(list(folders.values()))
    except ValueError as error:
        print(f"rlinf runs compare: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(comparison.to_json(), indent=2, default=str))
    else:
        print("\n".join(comparison_lines(comparison, terminal_width())))
    return 0


def comparison_lines(comparison: Comparison, width: int | None) -> list[str]:
    """Return the comparison as lines.

    Args:
        comparison: of runs.
        width: characters of a line; None for no limit.
    """
    groups = comparison.groups
    lines = [line for group in groups for line in _legend(group)]
    missing = [run for g in groups for run, c in zip(g.runs, g.configs, strict=True) if c is None]
    lines += [f"{_shown(run)} has no configuration: it ended too early" for run in missing]
    labels = [group.label for group in groups]
    keys = [
        (key, [", ".join(map(words.config_value, group.values(key))) for group in groups])
        for key in comparison.keys
    ]
    if keys:
        lines += ["", *_side_by_side("configuration", labels, keys, width)]
    elif not missing:
        lines += ["", "the configurations are equal"]
    return [*lines, "", *_side_by_side("results", labels, _results(comparison), width)]


def _legend(group: Group) -> list[str]:
    lines = [f"{group.label}  {_shown(run)}" for run in group.runs]
    if len(lines) > 1:
        lines[0] += f"  ({len(lines)} runs that differ only in the seed)"
        indent = " " * len(group.label)
        lines[1:] = [indent + line[len(group.label) :] for line in lines[1:]]
    return lines


def _shown(run: RunEntry) -> str:
    tags = f"  [{', '.join(run.tags)}]" if run.tags else ""
    return f"{shown(run.folder)}{tags}"


def _results(comparison: Comparison) -> list[Row]:
    """Return the rows of results that at least one group has something for."""
    groups = comparison.groups
    rows: list[Row] = [("status", [_tally([run.status for run in g.runs]) for g in groups])]
    for metric in comparison.metrics:
        rows.append((words.metric_name(metric), [_score(group, metric) for group in groups]))
    rows.append(("steps", [_number(g, lambda run: run.step, _whole) for g in groups]))
    for unit in ("env steps", "samples"):
        counts = [_number(g, lambda run, u=unit: run.counts.get(u), _whole) for g in groups]
        speeds = [_number(g, lambda run, u=unit: _speed(run, u), words.per_second) for g in groups]
        rows += [(unit, counts), (f"{unit} / s", speeds)]
    rows.append(
        ("wall time", [_number(g, lambda run: run.wall_seconds, words.span_words) for g in groups])
    )
    rows.append(("recipe", [_each(run.recipe for run in g.runs) for g in groups]))
    rows.append(("seed", [_each(run.seed for run in g.runs) for g in groups]))
    rows.append(("began from", [_each(run.began_from for run in g.runs) for g in groups]))
    rows.append(("commit", [_each(run.commit for run in g.runs) for g in groups]))
    for name in comparison.versions:
        rows.append((name, [_each(run.versions.get(name) for run in g.runs) for g in groups]))
    return [row for row in rows if any(text != _NOT_KNOWN for text in row[1])]


def _score(group: Group, metric: str) -> str:
    """Return the score of a run with its interval, or those of a group with their spread."""
    if len(group.runs) == 1:
        found = group.scores(metric)
        return words.score_with_interval(found[0]) if found else _NOT_KNOWN

    def value(run: RunEntry) -> float | None:
        return next((score.value for score in run.scores if score.metric == metric), None)

    return _number(group, value, lambda mean: words.metric_value(metric, mean))


def _number(
    group: Group, of: Callable[[RunEntry], float | None], say: Callable[[float], str]
) -> str:
    """Return a number of a run, or mean and ends of those of a group."""
    found = group.spread(of)
    if found is None:
        return _NOT_KNOWN
    few = "" if found.count == len(group.runs) else f" (of {found.count} runs)"
    if found.low == found.high:
        return f"{say(found.mean)}{few}"
    return f"mean {say(found.mean)}, min {say(found.low)}, max {say(found.high)}{few}"


def _speed(run: RunEntry, unit: str) -> float | None:
    return run.speed.value if run.speed is not None and run.speed.unit == unit else None


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _each(values: Any) -> str:
    known = [str(value) for value in values if value is not None]
    return ", ".join(dict.fromkeys(known)) or _NOT_KNOWN


def _tally(statuses: list[str]) -> str:
    counts = Counter(statuses)
    if len(counts) == 1:
        return statuses[0]
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _side_by_side(title: str, labels: list[str], rows: list[Row], width: int | None) -> list[str]:
    """Return rows as a table with a column per group; those too wide for it as blocks below it."""
    names = [title, *labels]
    inside = list(rows)
    while inside:
        table = [dict(zip(names, [name, *texts], strict=True)) for name, texts in inside]
        lines, _ = set_table([Column(name) for name in names], table, None)
        if width is None or max(map(len, lines)) <= width:
            break
        inside.remove(max(inside, key=lambda row: max(map(len, [row[0], *row[1]]))))
    else:
        lines = [title]
    for name, texts in rows:
        if (name, texts) not in inside:
            lines.append(name)
            lines += [f"  {label}  {text}" for label, text in zip(labels, texts, strict=True)]
    return lines


def _too_few(runs: list[str]) -> str:
    same = "these are one run" if len(runs) > 1 else "that is one"
    return f"rlinf runs compare: name at least two runs; {same}: {', '.join(runs)}"
