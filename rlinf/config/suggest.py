"""Finds the names a user probably meant, and says how to add one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

_DECORATORS = {
    "env": "register_env",
    "model": "register_model",
    "reward": "register_reward",
    "dataset": "register_dataset",
    "advantage": "register_advantage",
    "loss": "register_policy_loss or register_learner",
    "start_sampler": "register_start_sampler",
    "agent_loop": "register_agent_loop",
    "text_env": "register_text_env",
    "tool": "the decorator `tool`",
    "tool_parser": "register_parser",
    "query_encoder": "register_query_encoder",
    "expert": "register_expert",
    "gate": "register_gate",
}
"""What makes a name known, by the kind of plug-in."""


def near(name: object, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names that look most like `name`, best first.

    Args:
        name: What the user wrote.
        known: All valid names.
        count: How many to return at most.

    Returns:
        Near names in the spelling of `known`; empty when nothing is close.
    """
    by_lower = {item.lower(): item for item in sorted(known)}
    wanted = str(name).lower()
    matches = difflib.get_close_matches(wanted, by_lower, n=count, cutoff=0.6)
    # "batch_size" for "micro_batch_size": too short to be close, yet plainly related.
    related = [item for item in by_lower if len(wanted) > 3 and wanted in item]
    chosen = list(dict.fromkeys([*matches, *related]))[:count]
    if chosen and _likeness(wanted, chosen[0]) > 0.85:
        chosen = chosen[:1]
    return [by_lower[item] for item in chosen]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?`, or an empty string when nothing is close."""
    names = near(name, known)
    if not names:
        return ""
    return "did you mean " + " or ".join(f"'{item}'" for item in names) + "?"


def how_to_register(kind: str) -> str:
    """Say how a name of one's own becomes known.

    Args:
        kind: One of the kinds of `rlinf.config.plugins` or `rlinf.config.env_plugins`.
    """
    how = f"one of your own: {_DECORATORS[kind]} in a module that RLINF_EXT_MODULE"
    given = os.environ.get("RLINF_EXT_MODULE")
    now = f"; RLINF_EXT_MODULE={given} registers no such name" if given else ""
    return f"{how} or runner.ext_modules names{now}"


def listed(names: Iterable[str]) -> str:
    """Return the names sorted and joined by commas, or `(none)`."""
    return ", ".join(sorted(names)) or "(none)"
