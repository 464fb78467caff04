"""`rlinf testbed N -- COMMAND`: run a command on several hosts that this machine plays."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rlinf.testbed import HostBed
    from rlinf.testbed.ray_nodes import RayNodes

MOST_HOSTS = 64
_USAGE = "rlinf testbed [-h] [--link SPEED] [--cpus K] [--share FOLDER] N [-- COMMAND ...]"
_EXAMPLES = """\
examples:
  rlinf testbed 3 -- rlinf train metaworld_ppo_mlp cluster.num_nodes=3
  rlinf testbed 2 --link 1gbit -- python my_program.py     # links of 1 Gbit/s
  rlinf testbed 2                                          # a shell on the first host
"""
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def add_parser(commands: Any) -> None:
    """Add `testbed` to the sub-commands."""
    parser = commands.add_parser(
        "testbed",
        help="run a command on several hosts that this machine plays",
        usage=_USAGE,
        description="Make N hosts on this machine, each with a network, a name, /tmp and /dev/shm "
        "of its own, start Ray on each, and run a command, or a shell, on the first with "
        "RAY_ADDRESS set. When it ends, so do they, and what lies in their /tmp is gone. Needs "
        "root or user namespaces.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "hosts", metavar="N", type=_hosts, help=f"number of hosts, 1 to {MOST_HOSTS}"
    )
    parser.add_argument(
        "--link",
        metavar="SPEED",
        type=link_speed,
        help="speed of each host's link, in each direction: 1gbit, 100mbit (default: no limit)",
    )
    parser.add_argument(
        "--cpus", metavar="K", type=_cpus, default=4, help="cores that Ray counts on each (4)"
    )
    parser.add_argument(
        "--share",
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[],
        help="a folder in /tmp or /dev/shm that all hosts see; other places they all see anyway",
    )
    _take_command(parser)
    parser.set_defaults(run=run)


def _take_command(parser: argparse.ArgumentParser) -> None:
    """Let everything after `--` be the command, whatever it looks like."""
    parse = parser.parse_known_args

    def parse_known_args(
        args: Sequence[str], namespace: argparse.Namespace
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args)
        end = words.index("--") if "--" in words else len(words)
        found, rest = parse(words[:end], namespace)
        if rest:
            parser.error(
                f"{shlex.join(rest)} is not understood. What runs on the hosts stands after --: "
                "rlinf testbed 2 -- rlinf train ..."
            )
        found.words = words[end + 1 :]
        return found, rest

    parser.parse_known_args = parse_known_args


def run(args: argparse.Namespace) -> int:
    """Make hosts, run the command, and end them.

    Returns:
        The exit code of the command; 1 if there can be no hosts, or Ray does not start on them.
    """
    from rlinf.testbed import HostBed, HostBedError
    from rlinf.testbed.foreground import run_in_foreground
    from rlinf.testbed.ray_nodes import RayNodes

    for folder in args.share:
        folder.mkdir(parents=True, exist_ok=True)
    command = args.words or [os.environ.get("SHELL") or "/bin/sh"]
    try:
        with _leaving_on_signals(), HostBed(args.hosts, keep=args.share) as bed:
            nodes = RayNodes(bed.hosts, num_cpus=args.cpus)
            for host in bed.hosts if args.link is not None else ():
                host.slow(args.link)
            print(_describe(bed, nodes), file=sys.stderr, flush=True)
            return run_in_foreground(bed.hosts[0], command, nodes.env, Path.cwd())
    except HostBedError as error:
        print(f"rlinf testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _describe(bed: HostBed, nodes: RayNodes) -> str:
    """Return who is there, and how to get a shell on each."""
    width = max(len(host.ip) for host in bed.hosts)
    lines = [
        f"{len(bed.hosts)} hosts with Ray; RAY_ADDRESS={nodes.address}. A shell on one of them:"
    ]
    for host in bed.hosts:
        shell = shlex.join(host.command(["bash"], Path.cwd()))
        lines.append(f"  {host.name}  {host.ip:<{width}}  {shell}")
    return "\n".join(lines)


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Let signals that would end this process end it in order, so that nothing is left behind."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def link_speed(text: str) -> float:
    """Return a speed in bits per second: `1gbit`, `2.5Gbit/s`, `100mbit`, `64000`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:bit)?(?:/s|ps)?", text.strip().lower())
    bits = float(found.group(1)) * _UNITS[found.group(2)] if found else 0.0
    if bits < 8000:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the speed of a link. Write 1gbit, 2.5gbit, 100mbit or 64kbit; the "
            "least is 8kbit"
        )
    return bits


def _hosts(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hosts, 1 to {MOST_HOSTS}")
    return int(text)


def _cpus(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)
