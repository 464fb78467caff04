"""Which reward a dataset holds: what `rlinf collect` records, against what a run gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.lerobot.layout import find_root

FACTS = "meta/collect.json"
"""File in a dataset that says how it was collected; other programs pass it over."""


def reward_settings(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an env that say what is rewarded, plain data.

    Args:
        env: `env.train`; of its keys those with `reward` in their name count.
    """
    return {str(key): env[key] for key in sorted(env) if "reward" in str(key)}


def check_rewards(path: str, env: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    """Compare the reward of a dataset with that of a run.

    Args:
        path: Folder of the dataset.
        env: `env.train` of the run.
        tell: Tells the user that the dataset does not say what was rewarded.

    Raises:
        DatasetError: They differ; says in what, and what to do.
    """
    recorded = _recorded(path)
    if recorded is None:
        tell(
            f"{path} does not say which reward its episodes had ({FACTS} has no `reward`): see to "
            "it that it is that of env.train, as a critic learns from both"
        )
        return
    own = reward_settings(env)
    wrong = [key for key in own if key in recorded and recorded[key] != own[key]]
    if not wrong:
        return
    differ = ", ".join(f"{key} {recorded[key]} and not {own[key]}" for key in wrong)
    again = " ".join(f"env.train.{key}={recorded[key]}" for key in wrong)
    raise DatasetError(
        f"{path} was collected with another reward than the run has: {differ}. Collect it again "
        f"with `rlinf collect`, or train with {again}"
    )


def _recorded(path: str) -> dict[str, Any] | None:
    """Return the settings that a dataset was collected with; None if it does not say."""
    try:
        facts = find_root(path) / FACTS
    except DatasetError:
        return None
    return json.loads(facts.read_text()).get("reward") if facts.is_file() else None
