"""What an environment of text is: it says something, the model answers, and so on until the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.config.plugin_table import PluginTable
from rlinf.config.signatures import Call, check_method

if TYPE_CHECKING:
    from rlinf.agents.episode import Question

Env = TypeVar("Env", bound="type[TextEnv]")

text_env_registry: PluginTable[type[TextEnv]] = PluginTable(
    "text_env",
    {"guess_number": "rlinf.agents.envs.games", "rooms": "rlinf.agents.envs.games"},
)
"""Environments by the names that `agentloop.env` uses."""


class TextEnv:
    """One episode of an environment; the arguments of `__init__` are `agentloop.env_options`."""

    def reset(self, question: Question) -> str:
        """Begin; return what the model reads after the question, or an empty text.

        Args:
            question: prompt and metadata; the same question begins the same episode.
        """
        raise NotImplementedError

    def step(self, text: str) -> tuple[str, float, bool]:
        """Take what the model wrote.

        Args:
            text: its response.

        Returns:
            What it reads next, the reward of this step, and whether the episode is over.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open; called at the end of each episode."""


def register_text_env(name: str, *, replaces: bool = False) -> Callable[[Env], Env]:
    """Register an environment for `agentloop.env`.

    Args:
        name: What the user writes; case does not matter.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator for subclasses of `TextEnv`. It raises a ValueError if the name is taken, or
        the class cannot be used as environments are.
    """

    def register(cls: Env) -> Env:
        check_method(f"text environment '{name}'", cls, "reset", Call(("question",)))
        check_method(f"text environment '{name}'", cls, "step", Call(("text",)))
        text_env_registry.register(name, cls, replaces=replaces)
        return cls

    return register


def make_text_env(name: str, options: dict[str, Any]) -> TextEnv:
    """Make an environment.

    Args:
        name: as it is registered.
        options: arguments of its class.

    Raises:
        ValueError: the name is not known, or the options are not those of the class.
    """
    cls = text_env_registry.lookup(name)
    try:
        return cls(**options)
    except TypeError as error:
        raise ValueError(f"agentloop.env_options of '{name}': {error}") from error
