"""Waits until a Ray cluster has so many accelerators or nodes; this is `check_ray.sh`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ACCELERATORS = ("GPU", "NPU", "TPU", "HPU", "neuron_cores")
"""What Ray calls them."""
LOOK_SECONDS = 0.5
_WRONG_TOKEN = "InvalidAuthToken"
HEAD_PORT = "6379"
AUTO = "auto"
"""Ray's name for the one that runs on this machine."""
_EXAMPLES = """\
examples:
  check_ray.sh 16            # until there are 16 accelerators
  check_ray.sh --nodes 2     # until there are 2 nodes, with or without accelerators
"""


class Seen:
    """What there is of the cluster so far."""

    def __init__(self) -> None:
        self.address = "this machine"
        self.reached = False
        self.nodes: list[dict[str, Any]] = []

    @property
    def accelerators(self) -> int:
        """Number of accelerators of all nodes."""
        return sum(_accelerators(node) for node in self.nodes)

    def describe(self) -> str:
        """Return one line per node."""
        lines = [f"{_count(len(self.nodes), 'node')}, {_count(self.accelerators, 'accelerator')}"]
        for node in sorted(self.nodes, key=lambda node: not _is_head(node)):
            cpus = f"{node['Resources'].get('CPU', 0):g} CPUs"
            what = f"{_count(_accelerators(node), 'accelerator')}, {cpus}"
            lines.append(f"  {node['NodeManagerAddress']:<15}  {what}{_head_mark(node)}")
        return "\n".join(lines)


def _accelerators(node: dict[str, Any]) -> int:
    return int(sum(node["Resources"].get(kind, 0) for kind in ACCELERATORS))


def _is_head(node: dict[str, Any]) -> bool:
    return "node:__internal_head__" in node["Resources"]


def _head_mark(node: dict[str, Any]) -> str:
    return " (head)" if _is_head(node) else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def wait(seen: Seen, address: str | None, accelerators: int, nodes: int) -> None:
    """Return when so many accelerators and nodes are there.

    Args:
        seen: what there is; kept up to date.
        address: of the head, if it was given.
        accelerators: least number of accelerators.
        nodes: least number of nodes.
    """
    while not _answers(found := find_address(address), seen):
        time.sleep(LOOK_SECONDS)
    import ray

    ray.init(address=found, logging_level="ERROR", log_to_driver=False)
    seen.reached = True
    try:
        while True:
            seen.nodes = [node for node in ray.nodes() if node["Alive"]]
            if seen.accelerators >= accelerators and len(seen.nodes) >= nodes:
                return
            time.sleep(LOOK_SECONDS)
    finally:
        ray.shutdown()


def find_address(given: str | None) -> str | None:
    """Return where the cluster is; None if the file that says so is not there yet.

    Args:
        given: the address, if it was given; else it is RAY_ADDRESS, or in the file of
            `start_ray.sh`, or it is that of this machine's Ray.
    """
    address = given or os.environ.get("RAY_ADDRESS")
    if not address:
        named = os.environ.get("RLINF_HEAD_FILE")
        file = Path(named or Path(__file__).with_name("ray_head_ip.txt"))
        if not file.exists():
            return None if named else AUTO
        address = file.read_text().strip()
    if address != AUTO and ":" not in address:
        address = f"{address}:{os.environ.get('RLINF_HEAD_PORT') or HEAD_PORT}"
    return address


def _answers(address: str | None, seen: Seen) -> bool:
    """Tell whether somebody is there; Ray itself gives up early, and says little."""
    if address is None:
        seen.address = f"the address in {os.environ['RLINF_HEAD_FILE']}"
        return False
    if address == AUTO:
        return True
    seen.address = address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        return True
    except (OSError, ValueError):
        return False


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return what was asked for, or leave with what is wrong with it."""
    parser = argparse.ArgumentParser(
        prog="check_ray.sh",
        description="Wait until a Ray cluster has at least so many accelerators, or nodes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "accelerators", type=_positive, nargs="?", metavar="N", help="accelerators of all nodes"
    )
    parser.add_argument("--nodes", type=_positive, metavar="N", help="nodes, with or without them")
    parser.add_argument(
        "--timeout",
        type=_positive,
        metavar="SECONDS",
        default=os.environ.get("RLINF_START_TIMEOUT") or "360",
        help="until they must be there (RLINF_START_TIMEOUT, or 360)",
    )
    parser.add_argument(
        "--address", help="host:port of the head (RAY_ADDRESS, or the file of start_ray.sh)"
    )
    args = parser.parse_args(words)
    if args.accelerators is None and args.nodes is None:
        parser.error("say how many accelerators there must be, or --nodes N for a CPU cluster")
    return args


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _give_up(seen: Seen, args: argparse.Namespace) -> NoReturn:
    """Say what is missing, and end this process, whatever it does."""
    wanted = [_count(args.accelerators, "accelerator")] if args.accelerators else []
    wanted += [_count(args.nodes, "node")] if args.nodes else []
    said = f"not {' and '.join(wanted)} within {args.timeout} s"
    if seen.reached:
        said += (
            f", but {seen.describe()}\nIs Ray running on the others, with the same token? "
            "`RLINF_NODE_RANK=<n> ray_utils/start_ray.sh` starts it and says what is wrong."
        )
    else:
        said += (
            f": no Ray answers at {seen.address}. Start it with ray_utils/start_ray.sh, or "
            "name the head with --address or RAY_ADDRESS."
        )
    _end(said)


def _end(said: str) -> NoReturn:
    print(f"check_ray.sh: {said}", file=sys.stderr, flush=True)
    # Ray may be waiting for an answer in a way that cannot be interrupted.
    os._exit(1)


def main(words: Sequence[str] | None = None) -> int:
    """Wait, and say what there is.

    Returns:
        0; what is not there in time ends the process with 1.
    """
    args = parse_arguments(words)
    seen = Seen()
    deadline = threading.Timer(args.timeout, _give_up, (seen, args))
    deadline.daemon = True
    deadline.start()
    try:
        wait(seen, args.address, args.accelerators or 0, args.nodes or 0)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if _WRONG_TOKEN in "".join(traceback.format_exception(error)):
            _end(
                f"the Ray at {seen.address} does not accept the token of this machine. Give it the "
                "one of the head: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."
            )
        _end(
            f"the Ray at {seen.address} cannot be joined from here: {error}\n"
            "Run this on one of its nodes, where ray_utils/start_ray.sh has started Ray."
        )
    deadline.cancel()
    print(seen.describe(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
