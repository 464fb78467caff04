"""What a run learned from: its replay buffer, how old its rollouts were, and demonstrations."""

from __future__ import annotations

from html import escape
from typing import Any

from rlinf.cli.report.headline import Tile, last_evaluation
from rlinf.cli.report.pieces import cell, table, tile_grid
from rlinf.cli.report.run_record import RunRecord
from rlinf.data.demonstrations.rewards import reward_settings
from rlinf.utils.numbers import number, percent

_REPLAY, _DEMOS, _DATA = "train/replay_buffer", "train/demo_buffer", "train/data"
_NOTES = {
    "update ratio": "Update ratio: gradient steps per env step, over the whole run.",
    "policy age": "Policy age: updates that the learner had made since the weights that acted.",
    "TD error": "TD error: mean distance of the Q-values from their targets.",
}
"""What a number means, by its label."""


def learned_from_section(record: RunRecord) -> str:
    """Return the section; empty for runs that learn from each rollout once, as it is made."""
    shown = [*_replay(record), *_ages(record), *_values(record), *_labels(record)]
    compared = _sources(record)
    if not shown and not compared:
        return ""
    notes = " ".join(text for label, text in _NOTES.items() if label in {t.label for t in shown})
    return (
        '<section id="data"><h2>What it learned from</h2>'
        + (tile_grid(shown) if shown else "")
        + (f"<h3>Whose episodes</h3>{compared}" if compared else "")
        + (f'<p class="note">{escape(notes)}</p>' if notes else "")
        + "</section>"
    )


def _replay(record: RunRecord) -> list[Tile]:
    """Return the size of the buffer, and how often it was learned from."""
    size = record.latest(f"{_REPLAY}/total_samples")
    if size is None:
        return []
    most = record.latest(f"{_REPLAY}/cache_size")
    note = "transitions" if most is None else f"transitions, of at most {number(int(most))}"
    out = [Tile("replay buffer", number(int(size)), note)]
    updates, steps = record.latest("train/gradient_updates"), record.latest("env/total_steps")
    if updates and steps:
        note = f"{number(int(updates))} gradient steps"
        out.append(Tile("update ratio", number(updates / steps, 3), note))
    return out


def _ages(record: RunRecord) -> list[Tile]:
    """Return how old the weights were that acted; nothing of a run that takes turns."""
    allowed = (record.config.get("algorithm") or {}).get("max_policy_age") or 0
    ages = [line["rollout/policy_age"] for line in record.metrics if "rollout/policy_age" in line]
    if not allowed or not ages:
        return []
    name = "rollout/policy_age_max"
    oldest = max((line[name] for line in record.metrics if name in line), default=0.0)
    dropped = sum(line.get("rollout/stale_dropped", 0.0) for line in record.metrics)
    note = f"mean; at most {number(int(oldest))}, allowed is {number(allowed)}"
    out = [
        Tile("policy age", number(sum(ages) / len(ages), 3), note),
        Tile("dropped as stale", number(int(dropped)), "env steps, too old to learn from"),
    ]
    parts = sum(line.get("rollout/handed_over_early", 0.0) for line in record.metrics)
    if parts:
        note = "parts of rollouts of slow processes that all others waited for"
        out.append(Tile("handed over early", number(int(parts)), note))
    return out


def _values(record: RunRecord) -> list[Tile]:
    """Return Q-values and their targets, by how much they differ, and the entropy's weight."""
    prefix = next(
        (n.removesuffix("q_values") for line in record.metrics for n in line if _is_q(n)), None
    )
    if prefix is None:
        return []
    target = record.latest(f"{prefix}q_targets")
    heads = []
    while (value := record.latest(f"{prefix}q_values_{len(heads) + 1}")) is not None:
        heads.append(number(value, 3))
    words = [] if target is None else [f"targets {number(target, 3)}"]
    words += [f"heads {', '.join(heads)}"] if len(heads) > 1 else []
    out = [Tile("Q-values", number(record.latest(f"{prefix}q_values")), "; ".join(words))]
    for name, label, note in (
        ("td_error", "TD error", "last step"),
        ("alpha", "alpha", "weight of the entropy"),
    ):
        value = record.latest(f"{prefix}{name}")
        out += [] if value is None else [Tile(label, number(value, 3), note)]
    return out


def _is_q(name: str) -> bool:
    return name.startswith("train/") and name.endswith("/q_values")


def _labels(record: RunRecord) -> list[Tile]:
    """Return what an expert has said, of DAgger."""
    count = record.latest("train/dagger/labels")
    if count is None:
        return []
    beta = record.latest("train/dagger/beta")
    acted = record.latest("rollout/intervened")
    out = [Tile("labels", number(int(count)), "of an expert, for what the policy observed")]
    if acted is not None:
        note = "of the steps of the last rollout"
        note += "" if beta is None else f"; beta {number(beta, 3)}"
        out.append(Tile("expert acted", percent(acted), note))
    return out


def _sources(record: RunRecord) -> str:
    """Return a table of the episodes that others and the policy itself played, if there are any."""
    prefix, count = _DEMOS, record.latest(f"{_DEMOS}/num_trajectories")
    if count is None:
        prefix, count = _DATA, record.latest(f"{_DATA}/episodes")
    if count is None:
        return ""
    samples = record.latest(f"{prefix}/{'total_samples' if prefix == _DEMOS else 'samples'}")
    rows = [("demonstrations", count, samples, *_outcome(record, prefix))]
    own = sum(line.get("env/episodes", 0.0) for line in record.metrics)
    if own:
        size = record.latest(f"{_REPLAY}/added_samples")
        rows.append(("own, in training", own, size, *_outcome(record, "env")))
    found = last_evaluation(record)
    note = ""
    if found.get("eval/episodes"):
        total = found.get("eval/return")
        if not _same_reward(record.config.get("env") or {}):
            total, note = None, '<p class="note">The evaluation has another reward.</p>'
        outcome = found.get("eval/success_once"), total
        rows.append(("own, last evaluation", found["eval/episodes"], None, *outcome))
    head = ["", "episodes", "transitions", "success", "mean return"]
    return table(head, (_row(*row) for row in rows)) + note


def _same_reward(envs: dict[str, Any]) -> bool:
    """Return whether returns of training and evaluation can be compared."""
    train, evaluation = (reward_settings(envs.get(part) or {}) for part in ("train", "eval"))
    return all(evaluation.get(key, value) == value for key, value in train.items())


def _outcome(record: RunRecord, prefix: str) -> tuple[float | None, float | None]:
    """Return success and return, the last that are known."""
    return record.latest(f"{prefix}/success_once"), record.latest(f"{prefix}/return")


def _row(
    name: str, count: float, size: float | None, success: float | None, total: float | None
) -> list[str]:
    whole = None if size is None else int(size)
    return [
        name,
        cell("episodes", int(count)),
        cell("transitions", whole),
        cell("success_once", success),
        cell("return", total),
    ]
