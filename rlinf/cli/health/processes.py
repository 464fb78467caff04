"""Can processes be started here and talk to one another: ports, file descriptors, Ray?"""

from __future__ import annotations

import importlib
import os
import resource
import socket
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.cli.health.finding import Finding
from rlinf.utils.extras import package_hint
from rlinf.utils.ray_token import has_token

PORTS = 64
"""Ports that a run of a few workers uses at once."""

RAY_PORT = 6379
"""Where `ray start --head` listens unless told otherwise."""


def check_ports(bind: Callable[[int], socket.socket] | None = None, count: int = PORTS) -> Finding:
    """Check that many ports of the loopback interface can be had at once.

    Args:
        bind: Opens a listening socket on a port; 0 is any free one.
        count: Ports to try.
    """
    bind = bind or _bind
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(bind(0))
    except OSError as error:
        return Finding(
            "ports",
            "fail",
            f"port {len(held) + 1} of {count} on 127.0.0.1 could not be opened: {error}",
            "bring loopback up (ip link set lo up), and close programs that hold many ports",
        )
    finally:
        for item in held:
            item.close()
    try:
        bind(RAY_PORT).close()
    except OSError:
        return Finding(
            "ports",
            "ok",
            f"{count} free on 127.0.0.1; {RAY_PORT} is taken, perhaps by another Ray: runs do not "
            "join it unless RAY_ADDRESS or cluster.address says so",
        )
    return Finding("ports", "ok", f"{count} free on 127.0.0.1")


def check_file_limit(limits: tuple[int, int] | None = None) -> Finding:
    """Check how many files and sockets a process may have open."""
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_limit(soft)} open files, at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < 4096:
        return Finding("file limit", "warn", text, "ulimit -n 65536 before the run")
    return Finding("file limit", "ok", text)


def check_ray(
    environ: Mapping[str, str] = os.environ,
    load: Callable[[str], Any] = importlib.import_module,
) -> list[Finding]:
    """Check that Ray loads, which Ray a run would join, and that strangers cannot join it.

    Args:
        environ: Environment variables.
        load: Imports a module.
    """
    try:
        version = load("ray").__version__
    except ImportError as error:
        fix = package_hint("ray[default]")
        return [Finding("ray", "fail", f"cannot be imported: {error}", fix)]
    findings = [Finding("ray", "ok", version)]
    address = environ.get("RAY_ADDRESS")
    if address:
        findings.append(
            Finding(
                "ray address",
                "warn",
                f"RAY_ADDRESS={address}: runs join that cluster and do not start their own",
                "unset RAY_ADDRESS to run on this machine alone",
            )
        )
    else:
        findings.append(
            Finding("ray address", "ok", "RAY_ADDRESS is not set: runs start their own")
        )
    return [*findings, _authentication(environ, has_token(environ))]


def _authentication(environ: Mapping[str, str], token: bool) -> Finding:
    name, mode = "ray authentication", environ.get("RAY_AUTH_MODE", "").lower()
    danger = "whoever reaches a port of this Ray can run code as you"
    if mode and mode != "token":
        fix = "unset RAY_AUTH_MODE, or export RAY_AUTH_MODE=token"
        return Finding(name, "warn", f"RAY_AUTH_MODE={mode}: {danger}", fix)
    # A Ray that a run starts makes its own token; one started by hand must be given one.
    if environ.get("RAY_ADDRESS") and not token:
        fix = "ray get-auth-token --generate, copy the token to every node, restart Ray there"
        return Finding(name, "warn", f"no token on this machine: {danger}", fix)
    return Finding(name, "ok", "by token")


def _bind(port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        opened.bind(("127.0.0.1", port))
        opened.listen(1)
    except OSError:
        opened.close()
        raise
    return opened


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
