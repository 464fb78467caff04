"""What differs between runs, in their configuration and in what came out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlinf.cli.runs.entry import RunEntry, read_entry
from rlinf.cli.runs.score import METRICS, Score
from rlinf.utils.runs.folders import CONFIG, shown

ABSENT = "(absent)"
_SEED = re.compile(r"(?!env\.eval\.)(.*\.)?seed")
"""Keys that draw another sample of the same experiment. An evaluation's seed chooses its episodes:
another one makes another evaluation."""
_FOLDER = re.compile(r"runner\.(run_dir|logger\.(log_path|experiment_name))")
"""Keys that say where the folder of a run is."""
_QUIET = re.compile(r"runner\.(progress|trace|log_interval|report_unread_keys|logger\..*)")
"""Keys that say what is told of a run, and change nothing in it."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Spread:
    """A number of several runs.

    Attributes:
        mean: over those that have it.
        low: the lowest.
        high: the highest.
        count: runs that have it.
    """

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed; often a single one.

    Attributes:
        label: A, B, ...
        runs: the runs, in the order given.
        configs: configuration of each by full key; None for a run that has none.
    """

    label: str
    runs: list[RunEntry]
    configs: list[dict[str, Any] | None]

    def values(self, key: str) -> list[Any]:
        """Return the values of a configuration key, each once."""
        out: list[Any] = []
        for config in self.configs:
            value = ABSENT if config is None else config.get(key, ABSENT)
            if value not in out:
                out.append(value)
        return out

    def scores(self, metric: str) -> list[Score]:
        """Return what each run scored in a metric, as far as it is known."""
        return [score for run in self.runs for score in run.scores if score.metric == metric]

    def spread(self, of: Callable[[RunEntry], float | None]) -> Spread | None:
        """Return mean, lowest and highest of a number of the runs; None if no run has it."""
        return spread([value for run in self.runs if (value := of(run)) is not None])


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        groups: of runs that differ only in the seed.
        keys: configuration keys whose value is not the same in all runs; those that say where the
            folder of a run is are left out.
        versions: packages whose version is not the same in all runs.
    """

    groups: list[Group]
    keys: list[str]
    versions: list[str]

    @property
    def metrics(self) -> list[str]:
        """Metrics that at least one run was evaluated by."""
        return [name for name in METRICS if any(group.scores(name) for group in self.groups)]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "groups": [
                {
                    "label": group.label,
                    "runs": [run.to_json() for run in group.runs],
                    "scores": {
                        metric: asdict(found)
                        for metric in self.metrics
                        if (found := spread([score.value for score in group.scores(metric)]))
                    },
                }
                for group in self.groups
            ],
            "differing_keys": {
                key: {group.label: group.values(key) for group in self.groups} for key in self.keys
            },
        }


def spread(values: list[float]) -> Spread | None:
    """Return mean, lowest and highest of numbers; None if there are none."""
    if not values:
        return None
    return Spread(sum(values) / len(values), min(values), max(values), len(values))


def compare_runs(folders: list[Path]) -> Comparison:
    """Compare runs.

    Raises:
        ValueError: the configuration of one cannot be read.
    """
    entries = [_with_intervals(read_entry(folder)) for folder in folders]
    configs = [read_config(folder) for folder in folders]
    groups: list[Group] = []
    for entry, config in zip(entries, configs, strict=True):
        group = next((g for g in groups if _only_seed_differs(g.configs[0], config)), None)
        if group is None:
            group = Group(_label(len(groups)), [], [])
            groups.append(group)
        group.runs.append(entry)
        group.configs.append(config)
    keys = _differing([config for config in configs if config is not None])
    return Comparison(
        groups,
        keys=[key for key in keys if not _FOLDER.fullmatch(key)],
        versions=_differing([entry.versions for entry in entries]),
    )


def read_config(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of a run by full key; None if it has written none.

    Raises:
        ValueError: the file is damaged.
    """
    import yaml

    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        config = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{shown(path)} is not YAML ({error}); mend it, or leave the run out"
        ) from error
    if not isinstance(config, dict):
        raise ValueError(f"{shown(path)} is not a configuration; mend it, or leave the run out")
    return _flat(config)


def _with_intervals(run: RunEntry) -> RunEntry:
    """Add the intervals that only the list of the evaluation's episodes has: those of returns."""
    path = run.folder / "evaluation.json"
    if not path.is_file() or all(score.low is not None for score in run.scores):
        return run
    try:
        overall = json.loads(path.read_text())["overall"]
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{shown(path)} is not the file of an evaluation ({error}); mend it or move it away"
        ) from error
    scores = []
    for score in run.scores:
        known = overall.get(score.metric) or {}
        # It may be of another evaluation than the summary.
        if score.low is None and known.get("value") == score.value:
            score = replace(score, low=known.get("low"), high=known.get("high"))
        scores.append(score)
    return replace(run, scores=scores)


def _only_seed_differs(one: dict[str, Any] | None, two: dict[str, Any] | None) -> bool:
    if one is None or two is None:
        return False
    free = (_SEED, _FOLDER, _QUIET)
    return all(any(kind.fullmatch(key) for kind in free) for key in _differing([one, two]))


def _differing(tables: list[dict[str, Any]]) -> list[str]:
    """Return the keys whose value is not the same in all tables, sorted."""
    first, *others = tables or [{}]
    keys = sorted(set().union(*tables)) if tables else []
    return [
        key
        for key in keys
        if any(table.get(key, ABSENT) != first.get(key, ABSENT) for table in others)
    ]


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    out: dict[str, Any] = {}
    for key, value in node.items():
        out |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return out


def _label(number: int) -> str:
    """Return A to Z, then A2 to Z2, ..."""
    again, letter = divmod(number, len(_LETTERS))
    return _LETTERS[letter] + (str(again + 1) if again else "")
