"""The only module that starts, joins and leaves Ray."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlinf.scheduler.cluster import ray_messages
from rlinf.scheduler.cluster.lost_nodes import lost_nodes
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.places import make_own_folder, own_folder
from rlinf.scheduler.topology.node import AliveNode
from rlinf.scheduler.worker.backend import RayBackend
from rlinf.utils.logger_keys import hidden_logger_keys
from rlinf.utils.ray_token import WHERE, close_to_others, make_token, use_token

_STARTS = 4
_LONGEST_ROOT = 36
"""Bytes of a folder that leave room for Ray's sockets below it, whose paths may have 107."""
_TOO_SLOW = "timed out during startup"
_WRONG_TOKEN = "InvalidAuthToken"


class RaySession:
    """A connection to Ray: one's own local instance, or a cluster that was named.

    A running Ray on this machine is never joined unless the configuration or RAY_ADDRESS names it.

    Attributes:
        owned: whether this session has entered Ray, and leaves it.
        local: whether it has started a Ray of its own.
        backend: how calls come back.
    """

    backend = RayBackend()

    def __init__(
        self, address: str | None, *, dashboard: bool, num_cpus: int | None, namespace: str
    ):
        self.owned = False
        self.local = False
        address = address or os.environ.get("RAY_ADDRESS") or None
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        if address is None:
            # Read when Ray is imported: an instance for this machine alone listens on loopback.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        elif address != "local":
            _check_reachable(address)
            use_token(address)
        import ray

        if ray.is_initialized():
            return
        ray_messages.keep_out()
        options: dict[str, Any] = {"namespace": namespace, "logging_level": "ERROR"}
        if address is None or address == "local":
            self.local = True
            options |= {"address": "local", "include_dashboard": dashboard}
            if "RAY_TMPDIR" not in os.environ:
                options |= {"_temp_dir": str(_session_root())}
            if num_cpus is not None:
                options["num_cpus"] = num_cpus
        else:
            options["address"] = address
        debugger = os.environ.get("PYTHONBREAKPOINT")
        try:
            with _importable_by_workers(), hidden_logger_keys():
                if self.local:
                    make_token()
                    _start(options)
                    _close_session()
                else:
                    ray.init(**options)
        except ConnectionError as error:
            raise _cannot_join(address, error) from error
        finally:
            # Ray puts a debugger of its own in the place of what the user has chosen.
            os.environ.pop("PYTHONBREAKPOINT", None)
            if debugger is not None:
                os.environ["PYTHONBREAKPOINT"] = debugger
        self.owned = True

    @property
    def has_own_ray(self) -> bool:
        """Whether the processes of Ray are this session's own, and end with it."""
        return self.local

    def this_node(self) -> str:
        """Return Ray's id of the node of this process."""
        import ray

        return ray.get_runtime_context().get_node_id()

    def wait_for_nodes(
        self, count: int, deadline: float, missing: Callable[[list[AliveNode]], str]
    ) -> list[AliveNode]:
        """Wait until `count` nodes are alive.

        Args:
            count: number of nodes; 0 for those that are there.
            deadline: seconds.
            missing: says, given the nodes that are there, which are not.

        Raises:
            ClusterError: they are not all there in time.
        """
        end = time.monotonic() + deadline
        told = False
        while True:
            nodes = alive_nodes()
            if len(nodes) >= max(count, 1):
                return nodes
            if self.local:
                raise ClusterError(
                    f"cluster.num_nodes is {count}, but no Ray cluster was named, so this machine "
                    "is the only node. Start Ray on each node (`ray start`) with RLINF_NODE_RANK "
                    "exported, and set RAY_ADDRESS or cluster.address; or set cluster.num_nodes: 1."
                )
            if time.monotonic() > end:
                raise ClusterError(
                    f"{len(nodes)} of {count} nodes joined within {deadline:g} s "
                    f"(cluster.timeouts.nodes); {missing(nodes)}"
                )
            if not told:
                print(f"waiting for {count - len(nodes)} more node(s)", file=sys.stderr, flush=True)
                told = True
            time.sleep(0.2)

    def run_on(
        self, ray_id: str, function: Callable[..., Any], *args: Any, timeout: float = 60.0
    ) -> Any:
        """Run a function on a node and return its value."""
        return self.start_on(ray_id, function, *args)(timeout)

    def start_on(
        self, ray_id: str, function: Callable[..., Any], *args: Any
    ) -> Callable[[float], Any]:
        """Start a function on a node; call what it returns, with a deadline, for the value."""
        import ray

        remote = ray.remote(num_cpus=0, max_retries=0)(function)
        reference = remote.options(scheduling_strategy=on_node(ray_id)).remote(*args)
        return lambda timeout: ray.get(reference, timeout=timeout)

    def close(self) -> None:
        """Leave Ray if this session entered it; end it if this session started it."""
        import ray

        if self.owned and ray.is_initialized():
            ray.shutdown()


def alive_nodes() -> list[AliveNode]:
    """Return the nodes that Ray says are alive, without those that this process has lost."""
    import ray

    return [
        AliveNode(
            ray_id=node["NodeID"],
            ip=node["NodeManagerAddress"],
            is_head="node:__internal_head__" in node.get("Resources", {}),
        )
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in lost_nodes()
    ]


def _start(options: dict[str, Any]) -> None:
    """Start a Ray of one's own, again if the machine is too busy for the time that Ray allows.

    Raises:
        ClusterError: it did not come up in any attempt.
    """
    import psutil
    import ray

    before = set(psutil.Process().children())
    for attempt in range(1, _STARTS + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:
            # Ray has no type for it, and leaves behind what it has started.
            if _TOO_SLOW not in str(error):
                raise
            for process in set(psutil.Process().children()) - before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    process.wait(10)
            if attempt == _STARTS:
                raise ClusterError(
                    f"Ray did not start on this machine in {_STARTS} attempts: {error} Look at the "
                    "load of the machine, and for what its processes say in "
                    f"{options.get('_temp_dir', '/tmp/ray')}."
                ) from error
            print(
                f"Ray did not start in time; the machine may be busy. Attempt {attempt + 1} of "
                f"{_STARTS}",
                file=sys.stderr,
                flush=True,
            )


def _session_root() -> Path:
    """Return a folder for the sessions of a Ray, in one that is this user's alone.

    Ray lets everybody write into the folders that it makes, and its sockets are there: whoever can
    rename one of those above can put others in their place.
    """
    try:
        make_own_folder()
        above = own_folder()
    except (ClusterError, OSError):
        above = None
    if above is None or len(os.fsencode(above)) > _LONGEST_ROOT:
        # Somebody has taken that name, or paths of sockets would be too long.
        above = Path(tempfile.mkdtemp(prefix="rlinf-", dir="/tmp"))
    return above / "ray"


def _close_session() -> None:
    """Take the rights of others to the folder of a Ray that was started here.

    Ray lets everybody write there, and its sockets are in it.
    """
    from ray._private.worker import _global_node

    close_to_others(Path(_global_node.get_session_dir_path()))


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes; a wrong address should be told at once."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise _no_ray(address, error) from error


def _no_ray(address: str | None, error: Exception) -> ClusterError:
    return ClusterError(
        f"there is no Ray at {address!r}: {error}. Start it there with `ray start --head`, or "
        "unset RAY_ADDRESS and cluster.address to run on this machine alone."
    )


def _cannot_join(address: str | None, error: Exception) -> ClusterError:
    """Return what to do when something answers at the address of a Ray, but does not let us in."""
    said = str(error).strip().partition("\n")[0]
    if _WRONG_TOKEN in "".join(traceback.format_exception(error)):
        return ClusterError(
            f"the Ray at {address!r} does not accept the token of this machine, or there is none. "
            f"Give it the one that Ray was started with on the head ({WHERE})."
        )
    return ClusterError(
        f"the Ray at {address!r} cannot be joined: {said}. Start the program on one of its nodes, "
        "with `ray start` done there, or unset RAY_ADDRESS and cluster.address to run on this "
        "machine alone."
    )


@contextlib.contextmanager
def _importable_by_workers() -> Iterator[None]:
    """Let processes of a Ray that is started here find this package where this one did."""
    root = str(Path(__file__).resolve().parents[3])
    before = os.environ.get("PYTHONPATH")
    entries = [root, *(before.split(os.pathsep) if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def on_node(ray_id: str) -> Any:
    """Ray's strategy for "on this node and no other"."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=ray_id, soft=False)
