"""Finds tools by the names that the config uses; `tool` says what one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.config.plugin_table import PluginTable

if TYPE_CHECKING:
    from rlinf.agents.tools.tool import Tool

tool_registry: PluginTable[Tool] = PluginTable(
    "tool", {"calculator": "rlinf.agents.tools.calculator"}
)
