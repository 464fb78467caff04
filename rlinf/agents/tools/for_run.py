"""The tools of a run: those that need its settings are made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf.agents.tools.tool import Tool, tool_registry


def tools_for_run(cfg: Any, documents: Callable[[], Any] | None = None) -> list[Tool]:
    """Return the tools that a config names.

    A registered tool that has `for_run(cfg, documents)` is asked for the one of this run.

    Args:
        cfg: the `agentloop` section.
        documents: returns those that the data brings, for tools that search; None if it has none.

    Raises:
        ValueError: a name is not known, or a tool cannot be made of what the config says.
    """
    registered = [tool_registry.lookup(name) for name in cfg.tools]
    return [
        each.for_run(cfg, documents) if hasattr(each, "for_run") else each for each in registered
    ]
