"""MCP servers as tools: connected to when a run begins, and started again when they die."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf.agents.tools.tool import RETRIES, Tool, ToolError, ToolFailed
from rlinf.utils.awaiting import first_of
from rlinf.utils.extras import install_hint

_INVALID_ARGUMENTS = -32602
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class McpServerSettings:
    """How to reach a server; the fields are the keys of `agentloop.mcp_servers`."""

    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[str] | None = None
    prefix: str = ""
    start_timeout: float = 30.0
    max_restarts: int = 100


class McpServer:
    """A connection to a server, in a thread and an event loop of its own.

    Args:
        name: of the server, for messages.
        settings: how to reach it.

    Raises:
        ValueError: it cannot be reached, or does not have the tools that are asked for.
    """

    def __init__(self, name: str, settings: McpServerSettings) -> None:
        require_mcp()
        self.name, self._settings = name, settings
        self._client: Any = None
        self._listed: list[Any] = []
        self._problem = ""
        self._restarts = 0
        self._loop = asyncio.new_event_loop()
        self._stop, self._broken = asyncio.Event(), asyncio.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"mcp {name}")
        self._thread.start()
        if not self._answered.wait(settings.start_timeout):
            self.close()
            raise ValueError(
                f"the MCP server '{name}' did not answer within {settings.start_timeout:g} s "
                f"(agentloop.mcp_servers.{name}.start_timeout): {_where(settings)}"
            )
        if self._client is None:
            self.close()
            raise ValueError(
                f"the MCP server '{name}' cannot be used: {self._problem}; looked at "
                f"{_where(settings)} (agentloop.mcp_servers.{name})"
            )

    @property
    def restarts(self) -> int:
        """How often it was connected to again."""
        return self._restarts

    def tools(self) -> list[McpTool]:
        """Return its tools, or those that the settings name.

        Raises:
            ValueError: one of them is not there.
        """
        wanted, found = self._settings.tools, {each.name: each for each in self._listed}
        missing = [name for name in wanted or () if name not in found]
        if missing:
            raise ValueError(
                f"the MCP server '{self.name}' has no tool {', '.join(missing)}, only "
                f"{', '.join(found) or 'none'} (agentloop.mcp_servers.{self.name}.tools)"
            )
        names = found if wanted is None else wanted
        return [McpTool(found[name], self._settings.prefix, self) for name in names]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool, from any event loop; see `McpTool`."""
        if not self._thread.is_alive():
            raise ToolFailed(f"the MCP server '{self.name}' was left")
        work = asyncio.run_coroutine_threadsafe(self._call(name, arguments), self._loop)
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """End the connection, and the process of a server that was started for it."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10.0)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._answered.set()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))

    async def _serve(self) -> None:
        """Be connected, again after a failure, until the end."""
        while not self._stop.is_set() and self._restarts <= self._settings.max_restarts:
            self._broken.clear()
            try:
                async with self._connect() as client:
                    listed = await _all_tools(client)
                    self._listed = self._listed or listed
                    self._client = client
                    self._answered.set()
                    await first_of(self._stop.wait(), self._broken.wait())
            except Exception as error:
                self._problem = _words(error)
            finally:
                self._client = None
            if not self._answered.is_set() or self._stop.is_set():
                return
            self._restarts += 1
            await asyncio.sleep(min(_PAUSE_SECONDS * self._restarts, 5.0))
        # Whoever still calls is told why that is of no use.
        await self._stop.wait()

    @contextlib.asynccontextmanager
    async def _connect(self) -> Any:
        import mcp

        settings = self._settings
        if settings.command is not None:
            started = mcp.StdioServerParameters(
                command=settings.command,
                args=list(settings.args),
                env=dict(settings.env),
                cwd=settings.cwd,
            )
            async with mcp.Client(started) as client:
                yield client
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(headers=dict(settings.headers), timeout=None) as http:
            transport = streamable_http_client(settings.url, http_client=http)
            async with mcp.Client(transport) as client:
                yield client

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        from mcp import MCPError

        client = await self._connected()
        try:
            return await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.error.code == _INVALID_ARGUMENTS:
                raise ToolError(str(error)) from error
            await self._check(client)
            raise ToolFailed(f"the MCP server '{self.name}' failed: {error}") from error
        except Exception as error:
            # It may be this answer alone that cannot be read.
            await self._check(client)
            raise ToolFailed(f"the MCP server '{self.name}' failed: {_words(error)}") from error

    async def _check(self, client: Any) -> None:
        """Connect again unless the server still answers."""
        try:
            await asyncio.wait_for(client.list_tools(), self._settings.start_timeout)
        except Exception:
            if self._client is client:
                self._broken.set()

    async def _connected(self) -> Any:
        """Wait until there is a connection."""
        deadline = self._loop.time() + self._settings.start_timeout
        while self._client is None or self._broken.is_set():
            if self._restarts > self._settings.max_restarts:
                raise ToolFailed(
                    f"the MCP server '{self.name}' failed more than "
                    f"{self._settings.max_restarts} times, the last time: {self._problem}"
                )
            if self._loop.time() > deadline:
                raise ToolFailed(f"the MCP server '{self.name}' is gone: {self._problem}")
            await asyncio.sleep(0.01)
        return self._client


class McpTool(Tool):
    """A tool of a server: its name, description and schema are those that the server tells.

    Args:
        listed: what the server told.
        prefix: what is put before the name.
        server: who is asked.
    """

    def __init__(self, listed: Any, prefix: str, server: McpServer) -> None:
        self._there, self._server = listed.name, server
        self.name = _NOT_IN_NAMES.sub("_", f"{prefix}{listed.name}")
        self.description = " ".join((listed.description or listed.title or listed.name).split())
        self._schema = dict(listed.input_schema)
        self.parameters = tuple(self._schema.get("properties", {}))
        hints = listed.annotations
        self.idempotent = bool(hints and (hints.idempotent_hint or hints.read_only_hint))
        self.retries = RETRIES
        self.stateful = self.inline = False
        self.timeout = self.concurrency = None
        self.function = self._called = self._ask
        self._returns = None

    @property
    def schema(self) -> dict[str, Any]:
        """See `Tool.schema`."""
        parameters = {"properties": {}, **self._schema}
        for key in ("title", "$schema", "additionalProperties"):
            parameters.pop(key, None)
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema of the server.

        Raises:
            ToolError: they do not fit.
        """
        import jsonschema

        unknown = [name for name in arguments if name not in self.parameters]
        if unknown and not self._schema.get("additionalProperties"):
            known = ", ".join(self.parameters) or "none"
            raise ToolError(f"{self.name}: there is no argument {unknown[0]!r}, only {known}")
        problem = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(self._schema).iter_errors(dict(arguments))
        )
        if problem is not None:
            place = ".".join(map(str, problem.absolute_path))
            where = f"{place!r}: " if place else ""
            raise ToolError(f"{self.name}: {where}{problem.message}")
        return {"arguments": dict(arguments)}

    async def _ask(self, arguments: Mapping[str, Any]) -> str:
        result = await self._server.call(self._there, arguments)
        text = "\n".join(map(_text_of, result.content))
        if result.is_error:
            raise ToolError(text or "the tool failed and did not say why")
        return text


def require_mcp() -> None:
    """Check that the package is there.

    Raises:
        ValueError: it is not; says how to install it.
    """
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"agentloop.mcp_servers needs the package mcp: {install_hint('agents')}"
        ) from error


async def _all_tools(client: Any) -> list[Any]:
    """Return the tools of all pages of a server's list.

    Raises:
        ValueError: it names a page again, and would never come to an end.
    """
    found, cursor, seen = [], None, set()
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
        if cursor in seen:
            raise ValueError(
                f"the server's list of tools does not end: page {cursor!r} comes again"
            )
        seen.add(cursor)


def _text_of(block: Any) -> str:
    """Return a part of an answer as text; pictures and sounds are only named."""
    if block.type == "text":
        return block.text
    if block.type == "resource" and hasattr(block.resource, "text"):
        return block.resource.text
    return f"[{block.type}]"


def _where(settings: McpServerSettings) -> str:
    if settings.command is not None:
        return " ".join([settings.command, *settings.args])
    return str(settings.url)


def _words(error: BaseException) -> str:
    """Return what an exception, or the first one inside a group of them, says."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
