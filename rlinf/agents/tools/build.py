"""From the `agentloop` section of a config to the tools of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.agents.tools.for_run import tools_for_run
from rlinf.agents.tools.mcp_servers import McpServer, McpServerSettings
from rlinf.agents.tools.tool import Tool
from rlinf.agents.tools.toolbox import RemoteTools, Toolbox


def make_toolbox(
    cfg: Any,
    remote: RemoteTools | None = None,
    documents: Callable[[], Any] | None = None,
) -> Toolbox:
    """Make the tools of a run.

    Args:
        cfg: the `agentloop` section.
        remote: calls tools in other processes; None calls them here.
        documents: returns those that the data brings, for tools that search; None if it has none.

    Raises:
        ValueError: a name is not known, options are not those of a tool, or an MCP server cannot
            be used.
    """
    # Tools that are called elsewhere are only described here, without an index, say.
    tools, servers = _with_servers(
        cfg, tools_for_run(cfg, documents) if remote is None else list(cfg.tools)
    )
    if remote is not None:
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
    tools, servers = _with_servers(cfg, list(cfg.tools))
    try:
        return Toolbox(tools).schemas
    finally:
        _close(servers)


def _with_servers(cfg: Any, tools: list[str | Tool]) -> tuple[list[str | Tool], list[McpServer]]:
    """Return tools and those of MCP servers, and these servers."""
    servers: list[McpServer] = []
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
