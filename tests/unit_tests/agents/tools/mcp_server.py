"""A real MCP server for tests: `python mcp_server.py`, or with a port for HTTP."""

from __future__ import annotations

import os
import signal
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("shop")
PRICES = {"apple": 0.5, "pear": 0.75}


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(product: str, amount: int = 1) -> str:
    """Look up what a product costs."""
    if product not in PRICES:
        raise ToolError(f"there is no {product}")
    return f"{amount * PRICES[product]}"


@server.tool()
def process() -> str:
    """Say which process this is."""
    return f"{os.getpid()} {os.environ.get('SHOP', '')}"


@server.tool()
def die() -> str:
    """End the server."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def die_once(mark: str) -> str:
    """End the server, unless a file is there."""
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{os.getpid()}"


@server.tool()
def hang(mark: str) -> str:
    """Hang."""
    open(mark, "w").close()
    time.sleep(3600)
    return ""


@server.tool(name="odd.name")
def odd_name() -> str:
    """Have a name that formats cannot hold."""
    return "odd"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")
