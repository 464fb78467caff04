"""From the `agentloop` section of a config to the tools of a run."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.agents.tools.mcp_servers import McpServer, McpServerSettings
from rlinf.agents.tools.tool import Tool
from rlinf.agents.tools.toolbox import RemoteTools, Toolbox


def make_toolbox(cfg: Any, remote: RemoteTools | None = None) -> Toolbox:
    """Make the tools of a run.

    Args:
        cfg: the `agentloop` section.
        remote: calls tools in other processes; None calls them here.

    Raises:
        ValueError: a name is not known, options are not those of a tool, or an MCP server cannot
            be used.
    """
    servers: list[McpServer] = []
    tools: list[str | Tool] = list(cfg.tools)
    try:
        for name, settings in _plain(cfg.mcp_servers).items():
            servers.append(McpServer(name, McpServerSettings(**settings)))
            tools += servers[-1].tools()
        return Toolbox(
            tools,
            timeout=cfg.tool_timeout,
            concurrency=cfg.tool_concurrency,
            most_characters=cfg.max_tool_characters,
            settings=_plain(cfg.tool_settings),
            remote=remote,
            servers=servers,
        )
    except BaseException:
        for server in servers:
            server.close()
        raise


def _plain(section: Any) -> Any:
    """Return a part of a config as plain data; all of it counts as read."""
    if isinstance(section, DictConfig):
        return OmegaConf.to_container(section, resolve=True)
    return section
