"""Turns what a dead worker left into a `WorkerDied` that says how and, if possible, why."""

from __future__ import annotations

from rlinf.scheduler.errors import WorkerDied
from rlinf.scheduler.failure.blackbox import Remains

OUT_OF_MEMORY = "the node ran out of memory and the kernel killed the process"


def diagnose(
    name: str,
    remains: Remains,
    *,
    node_rank: int | None,
    node_ip: str,
    message: str = "",
    oom_kills_before: int = 0,
) -> WorkerDied:
    """Builds the error for a dead worker.

    Args:
        name: its address.
        remains: what it left.
        node_rank: node that it ran on.
        node_ip: address of that node.
        message: what Ray says of the death.
        oom_kills_before: the node's count of processes killed for memory when the run began.
    """
    signal, exit_code = remains.signal, remains.exit_code
    if remains.pid is None:
        return WorkerDied(
            name,
            node_rank=node_rank,
            node_ip=node_ip,
            activity="starting, before it could note anything",
            cause=f"the process could not be started; Ray says: {_gist(message)}",
        )
    if signal is None and exit_code is None:
        # A process that can still run a handler leaves a note; one that could not was killed.
        signal = "SIGKILL"
    return WorkerDied(
        name,
        node_rank=node_rank,
        node_ip=node_ip,
        pid=remains.pid,
        signal=signal,
        exit_code=None if signal else exit_code,
        activity=remains.activity.partition(" (for ")[0],
        cause=_cause(signal, exit_code, remains, message, oom_kills_before),
        log_tail=remains.log_tail,
    )


def _gist(message: str, lines: int = 6) -> str:
    """The end of Ray's message, where the reason stands."""
    return "\n".join([line for line in message.splitlines() if line.strip()][-lines:])


def _cause(
    signal: str | None, exit_code: int | None, remains: Remains, message: str, before: int
) -> str:
    if signal == "SIGKILL":
        if remains.oom_kills > before:
            return OUT_OF_MEMORY
        if "memory monitor" in message.lower() or "outofmemory" in message.lower().replace(" ", ""):
            return "Ray's memory monitor killed it because the node was short of memory"
        return "killed from outside, by a person, a batch system or the kernel"
    if signal is not None:
        return f"a crash in native code ({signal}); the stacks are in the worker's .stacks file"
    return f"something in the process called exit with code {exit_code}"


def what_to_change(error: WorkerDied) -> str:
    """Advice for a death."""
    if error.pid is None:
        return "check that this package and the worker's modules can be imported on that node"
    if not error.explained:
        return (
            "look whether that node is up and its network works; runner.max_restarts lets a run "
            "go on from its last checkpoint"
        )
    if error.cause == OUT_OF_MEMORY or "memory" in error.cause:
        return (
            "use fewer processes per node, fewer environments (env.train.total_num_envs) or "
            "smaller "
            "batches, or a node with more memory"
        )
    if error.signal == "SIGKILL":
        return (
            "find out who sent SIGKILL (batch system, container limit, dmesg); a group launched "
            "with "
            "restart={'on_failure': n} survives it"
        )
    if error.signal:
        return (
            "look at the stacks for the library that crashed; run the worker alone to reproduce it"
        )
    return (
        "raise an exception instead of leaving the process, so that the reason reaches the driver"
    )
