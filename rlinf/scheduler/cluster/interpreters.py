"""Looks at the interpreters that node groups name, before workers are started with them.

A process that cannot start says nothing, and Ray would try to start it again and again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from rlinf.scheduler.errors import ClusterError

if TYPE_CHECKING:
    from rlinf.scheduler.cluster.ray_session import RaySession
    from rlinf.scheduler.topology.topology import ClusterTopology

_FACTS = "import sys, ray; print(*sys.version_info[:2], ray.__version__)"
_SECONDS = 60.0
"""In which an interpreter has to answer."""
_GRACE_SECONDS = 30.0
"""For its node, which may be starting the process that asks it."""


def check_interpreters(session: RaySession, topology: ClusterTopology) -> None:
    """Start each interpreter once, on the nodes that have to have it.

    Raises:
        ClusterError: one is not there, or cannot be used with this Ray; names node and interpreter.
    """
    started = []
    for label, group in topology.node_groups.items():
        for node in group.nodes:
            path = group.get_node_python_interpreter_path(node.node_rank)
            if path is not None:
                where = f"node group {label!r}, node {node.node_rank} ({node.node_ip})"
                args = (interpreter_problem, path, _own_version())
                started.append((where, path, session.start_on(node.ray_id, *args)))
    for where, path, result in started:
        problem = result(_SECONDS + _GRACE_SECONDS)
        if problem:
            raise ClusterError(
                f"{where}: python_interpreter_path is {path}, {problem}; give the path of an "
                "interpreter there that has the packages of constraints.txt"
            )


def interpreter_problem(path: str, wanted: str) -> str | None:
    """Return, in words, why an interpreter of this node cannot be used; None if it can.

    Args:
        path: the interpreter.
        wanted: versions of Python and of Ray, as in "3 11 2.60.0".
    """
    found = shutil.which(path)
    if found is None:
        return "which is not there, or cannot be run"
    command = [found, "-c", _FACTS]
    try:
        tried = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"which did not import ray within {_SECONDS:g} s"
    except OSError as error:
        return f"which cannot be run ({error.strerror})"
    if tried.returncode:
        said = tried.stderr.strip().splitlines()
        return f"which cannot import ray ({said[-1] if said else f'exit {tried.returncode}'})"
    said = tried.stdout.strip()
    if len(said.split()) != len(wanted.split()):
        return f"which is no Python: it says {said[:80]!r}"
    if said != wanted:
        return f"which has {_in_words(said)}, while this run has {_in_words(wanted)}"
    return None


def _own_version() -> str:
    import ray

    return f"{sys.version_info.major} {sys.version_info.minor} {ray.__version__}"


def _in_words(facts: str) -> str:
    major, minor, ray_version = facts.split()
    return f"Python {major}.{minor} and Ray {ray_version}"
