"""A real MCP server whose list of tools has pages: `python mcp_pages.py COUNT`, or `endless`."""

from __future__ import annotations

import sys

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

ENDLESS = sys.argv[1:] == ["endless"]
COUNT = 0 if ENDLESS else int(sys.argv[1])


def _tool(number: int) -> types.Tool:
    schema = {"type": "object", "properties": {}}
    return types.Tool(name=f"tool_{number}", description="Say a number.", input_schema=schema)


async def _list(_: object, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    first = int(params.cursor) if params is not None and params.cursor else 0
    following = "0" if ENDLESS else str(first + 2) if first + 2 < COUNT else None
    numbers = range(first, max(first + 1, min(first + 2, COUNT)))
    return types.ListToolsResult(tools=[_tool(n) for n in numbers], next_cursor=following)


async def _call(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
    said = params.name.removeprefix("tool_")
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)])


async def main() -> None:
    """Serve over pipes."""
    server = Server("pages", on_list_tools=_list, on_call_tool=_call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
