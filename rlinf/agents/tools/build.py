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
    tools, servers = _tools_of(cfg)
    if remote is not None:
        # Here only their schemas are needed.
        _close(servers)
    try:
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
        _close(servers)
        raise


def stateful_tools(cfg: Any) -> frozenset[str]:
    """Return the names of the tools of a run that keep something open for an episode.

    Args:
        cfg: the `agentloop` section.
    """
    # Those of MCP servers do not.
    return Toolbox(list(cfg.tools)).stateful


def tool_schemas(cfg: Any) -> list[dict[str, Any]]:
    """Return the schemas of the tools of a run, as chat templates take them.

    Args:
        cfg: the `agentloop` section.

    Raises:
        ValueError: see `make_toolbox`.
    """
    tools, servers = _tools_of(cfg)
    try:
        return Toolbox(tools).schemas
    finally:
        _close(servers)


def _tools_of(cfg: Any) -> tuple[list[str | Tool], list[McpServer]]:
    """Return the tools that a config names, and the servers that some of them are on."""
    servers: list[McpServer] = []
    tools: list[str | Tool] = list(cfg.tools)
    try:
        for name, settings in _plain(cfg.mcp_servers).items():
            servers.append(McpServer(name, McpServerSettings(**settings)))
            tools += servers[-1].tools()
    except BaseException:
        _close(servers)
        raise
    return tools, servers


def _close(servers: list[McpServer]) -> None:
    for server in servers:
        server.close()


def _plain(section: Any) -> Any:
    """Return a part of a config as plain data; all of it counts as read."""
    if isinstance(section, DictConfig):
        return OmegaConf.to_container(section, resolve=True)
    return section
