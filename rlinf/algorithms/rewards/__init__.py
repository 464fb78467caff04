"""Finds reward classes by the names that the config uses; `base` says what such a class is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call, check_call, check_method

if TYPE_CHECKING:
    from pydantic import BaseModel

_BUILTIN = {
    name: f"rlinf.algorithms.rewards.{name}"
    for name in (
        "arithmetic",
        "code",
        "code_completion",
        "math",
        "reasoning_gym",
        "searchr1",
        "vqa",
    )
}
"""For each built-in reward the module that defines and registers it when imported."""

_SCORE = Call(("response", "answer"), ("prompt", "metadata"))

reward_registry: PluginTable[type] = PluginTable("reward", _BUILTIN)


def register_reward(
    name: str,
    cls: type,
    *,
    schema: type[BaseModel] | None = None,
    replaces: bool = False,
) -> None:
    """Register a reward class for `reward.reward_type`.

    Args:
        name: What the user writes; case does not matter.
        cls: A class with a method `score`: see `Reward` in `rlinf.algorithms.rewards.base`.
        schema: A pydantic model of further keys of the `reward` section.
        replaces: Take the place of whoever has the name.

    Raises:
        ValueError: The name is taken, or the class cannot be called as rewards are.
    """
    check_call(f"reward '{name}'", cls, Call(("cfg",)))
    check_method(f"reward '{name}'", cls, "score", _SCORE)
    reward_registry.register(name, cls, schema=schema, replaces=replaces)


def get_reward_class(name: str) -> type:
    """Return the reward class of this name.

    Raises:
        ValueError: Nobody registered the name.
    """
    return reward_registry.lookup(name)
