"""`rlinf bisect A B`: the first thing that differs between two deterministic runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.cli.run_argument import run_argument

if TYPE_CHECKING:
    from rlinf.utils.fingerprints import Fingerprints

_MEANING = {
    "start": "the runs begin with different weights: compare runner.seed, actor.seed and the model "
    "section, and the weights they were loaded from",
    "seen": "all earlier observations and actions are equal: the simulator, or whatever its "
    "observations go through, gave something else",
    "done": "observations are equal up to here: the rollout computed or drew something else from "
    "them",
    "got": "observations and actions are equal up to here: the simulator answered differently",
    "credit": "the rollouts are equal: the learner makes something else of them, by its keys in "
    "the algorithm section or by what it remembers of earlier steps",
    "samples": "the rollouts are equal: the learner takes their samples in another order",
    "gradient": "weights and samples are equal: the loss, or the arithmetic of its gradient, "
    "differs",
    "weights": "gradients are equal: the optimiser made another step of them, by its learning rate "
    "or by what it remembers",
    "end": "all optimiser steps are equal: what changes after them, such as the statistics of a "
    "normaliser, differs",
}
_CREDIT = ("advantages", "returns", "mask")
_DONE = ("action", "prev_logprobs", "prev_values", "versions", "finite")
_GOT = ("rewards", "terminations", "truncations", "valid", "bootstrap_values")


@dataclass(frozen=True)
class Difference:
    """The first thing that differs.

    Attributes:
        step: of the training loop; 0 is before the first.
        kind: batch, samples, gradient or weights.
        tensors: which of them, the first one first; empty for samples.
        where: more exactly, in words.
        meaning: what that says about the cause.
    """

    step: int
    kind: str
    tensors: list[str]
    where: str
    meaning: str


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "bisect",
        help="name the first step and tensor in which two runs differ",
        description="Compare the fingerprints of two runs with runner.deterministic: true. Exit "
        "code 0 if they are equal as far as both go, 1 if they differ, 2 if they cannot be "
        "compared.",
    )
    parser.add_argument("a", metavar="A", type=run_argument, help="folder of a run")
    parser.add_argument("b", metavar="B", type=run_argument, help="folder of another one")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what differs first."""
    from rlinf.utils.fingerprints import read_fingerprints

    try:
        one, two = read_fingerprints(args.a), read_fingerprints(args.b)
        notes = list(comparable(one, two))
        found = first_difference(one, two)
    except ValueError as error:
        print(f"rlinf bisect: {error}", file=sys.stderr)
        return 2
    common = sorted(one.steps.keys() & two.steps.keys())
    if found is None:
        print(f"equal in all steps that both have: {common[0]} to {common[-1]}")
        print("\n".join(f"  {note}" for note in notes), end="\n" if notes else "")
        return 0
    print(f"first difference: step {found.step}, {found.kind}{_named(found.tensors)}")
    for line in (found.where, found.meaning):
        print(f"  {line}")
    before = [step for step in common if step < found.step]
    if before:
        print(f"  equal: steps {before[0]} to {before[-1]}")
    for note in [*notes, *_config_notes(one, two)]:
        print(f"  {note}")
    return 1


def comparable(one: Fingerprints, two: Fingerprints) -> Iterator[str]:
    """Say what else the runs have not in common.

    Raises:
        ValueError: they have no step, or not the same tensors.
    """
    if not one.steps.keys() & two.steps.keys():
        raise ValueError(f"{one.folder} and {two.folder} have no step in common")
    for kind in ("weights", "gradient"):
        names, others = one.names[kind], two.names[kind]
        if names != others:
            only = sorted(set(names) ^ set(others)) or names
            raise ValueError(
                f"{one.folder} and {two.folder} train different models: "
                f"{', '.join(only[:5])} is not in both, or elsewhere"
            )
    for key in sorted(one.facts.keys() | two.facts.keys()):
        a, b = one.facts.get(key), two.facts.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            for name in sorted(a.keys() | b.keys()):
                if a.get(name) != b.get(name):
                    yield f"{name} {a.get(name)} in A, {b.get(name)} in B"
        elif a != b:
            yield f"{key.replace('_', ' ')}: {a} in A, {b} in B"
    if one.facts.get("actor_ranks") != two.facts.get("actor_ranks"):
        yield "batches and orders of samples are not compared, as they are spread differently"


def first_difference(one: Fingerprints, two: Fingerprints) -> Difference | None:
    """Return what differs first, in causal order; None if nothing does."""
    for step in sorted(one.steps.keys() & two.steps.keys()):
        found = _in_step(one, step, one.steps[step], two.steps[step])
        if found is not None:
            return found
    return None


def _in_step(
    names: Fingerprints, step: int, a: dict[str, Any], b: dict[str, Any]
) -> Difference | None:
    same_spread = len(a.get("batch", [])) == len(b.get("batch", []))
    if same_spread:
        found = _in_batch(step, a.get("batch", []), b.get("batch", []))
        if found is not None:
            return found
    updates = list(zip(a.get("updates", []), b.get("updates", []), strict=False))
    for number, (u, v) in enumerate(updates, 1):
        where = f"in optimiser step {number} of {len(a['updates'])}"
        if same_spread and u["samples"] != v["samples"]:
            return Difference(step, "samples", [], where, _MEANING["samples"])
        for kind in ("gradient", "weights"):
            tensors = _differing(names.names[kind], u[kind], v[kind])
            if tensors:
                return Difference(step, kind, tensors, where, _MEANING[kind])
    counts = len(a.get("updates", [])), len(b.get("updates", []))
    if counts[0] != counts[1]:
        where = f"A made {counts[0]} optimiser steps, B {counts[1]}; the first ones are equal"
        return Difference(step, "samples", [], where, _MEANING["samples"])
    tensors = _differing(names.names["weights"], a["weights"], b["weights"])
    if not tensors:
        return None
    key = "end" if updates else "start"
    where = "after the last optimiser step" if updates else "before the first update"
    return Difference(step, "weights", tensors, where, _MEANING[key])


def _in_batch(step: int, a: list[dict[str, str]], b: list[dict[str, str]]) -> Difference | None:
    """Return the earliest chunk step of a rollout that differs, and what of it differs first."""
    from rlinf.utils.fingerprints import split_hashes

    earliest: tuple[int, int, list[str]] | None = None
    for rank, (u, v) in enumerate(zip(a, b, strict=True)):
        if u.keys() != v.keys():
            only = sorted(u.keys() ^ v.keys())
            return Difference(step, "batch", only, "is in one of the batches only", _cause(only[0]))
        for part in ([n for n in u if n not in _CREDIT], [n for n in u if n in _CREDIT]):
            places = {name: _first(split_hashes(u[name]), split_hashes(v[name])) for name in part}
            places = {name: place for name, place in places.items() if place is not None}
            if places:
                place = min(places.values())
                tensors = [name for name, where in places.items() if where == place]
                # Advantages are computed backwards, when the whole rollout is there.
                order = place if part[0] not in _CREDIT else sys.maxsize
                if earliest is None or order < earliest[0]:
                    earliest = order, rank, tensors
                break
    if earliest is None:
        return None
    place, rank, tensors = earliest
    where = f"in what actor rank {rank} received"
    if place < sys.maxsize:
        where += f", from chunk step {place} on"
    return Difference(step, "batch", tensors, where, _cause(tensors[0]))


def _cause(tensor: str) -> str:
    for names, key in ((_CREDIT, "credit"), (_DONE, "done"), (_GOT, "got")):
        if tensor in names:
            return _MEANING[key]
    return _MEANING["seen"]


def _first(a: list[str], b: list[str]) -> int | None:
    if a == b:
        return None
    same = zip(a, b, strict=False)
    return next((i for i, (u, v) in enumerate(same) if u != v), min(len(a), len(b)))


def _differing(names: list[str], a: str, b: str) -> list[str]:
    from rlinf.utils.fingerprints import split_hashes

    if a == b:
        return []
    hashes = zip(names, split_hashes(a), split_hashes(b), strict=True)
    return [name for name, u, v in hashes if u != v]


def _named(tensors: list[str]) -> str:
    if not tensors:
        return ""
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return f" '{tensors[0]}'{more}"


def _config_notes(one: Fingerprints, two: Fingerprints) -> Iterator[str]:
    """Return the keys of both configs that may explain the difference."""
    import yaml

    from rlinf.runners.config_difference import differences

    configs = []
    for folder in (one.folder, two.folder):
        path = Path(folder) / "config.yaml"
        if not path.is_file():
            return
        configs.append(yaml.safe_load(path.read_text()))
    for key, a, b in differences(*configs):
        yield f"config: {key} is {a!r} in A, {b!r} in B"
